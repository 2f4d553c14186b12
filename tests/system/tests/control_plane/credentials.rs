//! Tokens that are bound to a deleted Node: programs are not ready while the API server rejects them, report it, read a
//! new token, and exit where only a restart provides one.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::ByteString;
use serde_json::{Value, json};
use testbed::topolvm::{self, CONTROLLER, account_token};

use crate::Body;
use crate::fixture::{Fixture, spec};

pub(crate) const ALL: &[(&str, Body)] = &[("token_of_a_deleted_node_is_reported_and_replaced", lose_node)];

const NODE: &str = "short-lived";
/// A process outside of a container, whose token file an administrator writes.
const OUTSIDE: &str = "topolvm-controller-outside";
/// A process as in a container.
const CONTAINER: &str = "topolvm-controller-container";
const HEALTH: [(&str, &str); 2] = [(OUTSIDE, "127.0.0.1:8191"), (CONTAINER, "127.0.0.1:8192")];
/// Runs a program with the files that kubelet mounts into a container.
const IN_CONTAINER: &str = r#"mount -t tmpfs tmpfs /run && mkdir -p /run/secrets/kubernetes.io &&
    cp -r "$1" /run/secrets/kubernetes.io/serviceaccount && shift && exec "$@""#;
/// A watch lasts for a minute, and a container ends after two.
const PATIENCE: Duration = Duration::from_mins(6);

fn lose_node(fixture: &Fixture) -> Result<()> {
    fixture.create_node(NODE)?;
    let files = tempfile::Builder::new().prefix("topolvm-token-").tempdir_in("/var/tmp")?;
    let done = start(fixture, files.path()).and_then(|()| replace_token(fixture, &files.path().join("token")));
    for (name, _) in HEALTH {
        fixture.cluster.stop(name, Duration::ZERO)?;
    }
    done
}

/// Starts both processes with a token that is bound to the Node, and waits until they are ready.
fn start(fixture: &Fixture, files: &Path) -> Result<()> {
    let cluster = &fixture.cluster;
    let token = account_token(cluster, CONTROLLER, Some(NODE))?;
    let own = files.join("token");
    fs::write(&own, &token)?;
    let usual = fs::read(cluster.directory().join("topolvm-controller.kubeconfig"))?;
    let mut kubeconfig: Value = serde_json::from_slice(&usual)?;
    kubeconfig["users"][0]["user"] = json!({"tokenFile": own});
    let path = files.join("kubeconfig");
    fs::write(&path, kubeconfig.to_string())?;
    cluster.spawn(OUTSIDE, command(fixture, OUTSIDE)?.env("KUBECONFIG", &path))?;

    let account = files.join("serviceaccount");
    fs::create_dir(&account)?;
    let cluster_of = &kubeconfig["clusters"][0]["cluster"];
    let authority: ByteString = serde_json::from_value(cluster_of["certificate-authority-data"].clone())?;
    let contents = [("token", token.into_bytes()), ("namespace", b"topolvm-system".into()), ("ca.crt", authority.0)];
    for (name, content) in contents {
        fs::write(account.join(name), content)?;
    }
    let server = cluster_of["server"].as_str().unwrap_or_default();
    let (host, port) = server.trim_start_matches("https://").rsplit_once(':').context("a server without a port")?;
    let mut container = cluster.command("unshare");
    container.args(["--mount", "sh", "-c", IN_CONTAINER, "sh"]).arg(&account);
    container.args(command(fixture, CONTAINER)?.get_args().skip_while(|argument| *argument != "--").skip(1));
    container.env_remove("KUBECONFIG").env("HOME", files).env("POD_NAMESPACE", "topolvm-system");
    container.env("KUBERNETES_SERVICE_HOST", host).env("KUBERNETES_SERVICE_PORT", port);
    cluster.spawn(CONTAINER, &container)?;
    HEALTH.iter().try_for_each(|(name, _)| wait_for_answer(fixture, name, "ok"))
}

/// Returns the command of a further replica of the controller.
fn command(fixture: &Fixture, name: &str) -> Result<Command> {
    let cluster = &fixture.cluster;
    let socket = cluster.directory().join("controller").join(format!("{name}.sock"));
    let mut command = topolvm::controller_command(cluster, &spec(&[])?, &socket)?;
    command.args(["--metrics-bind-address=", &format!("--health-probe-bind-address={}", address(name)?)]);
    Ok(command)
}

fn address(name: &str) -> Result<&'static str> {
    let found = HEALTH.iter().find(|(known, _)| *known == name);
    found.map(|(_, address)| *address).context("a process without an address")
}

/// Deletes the Node. The process outside continues with a new token, the other one exits.
fn replace_token(fixture: &Fixture, file: &Path) -> Result<()> {
    fixture.kubectl(&["delete", "node", NODE, "--timeout=180s"])?;
    for (name, _) in HEALTH {
        wait_for_answer(fixture, name, "401 Unauthorized").context(name)?;
    }
    fs::write(file, account_token(&fixture.cluster, CONTROLLER, None)?)?;
    wait_for_answer(fixture, OUTSIDE, "ok").context("with a new token")?;

    fixture.cluster.ready_within("apiserver", PATIENCE, || {
        let log = fs::read_to_string(fixture.cluster.log(CONTAINER))?;
        ensure!(log.contains("credentials: the Kubernetes API server has rejected"), "it has not ended: {log}");
        Ok(())
    })?;
    let log = fs::read_to_string(fixture.cluster.log(OUTSIDE))?;
    ensure!(!log.contains("in the ClusterRole"), "a right is blamed: {log}");
    Ok(())
}

/// Waits until the readiness probe is answered with this text.
fn wait_for_answer(fixture: &Fixture, name: &str, words: &str) -> Result<()> {
    let url = format!("http://{}/readyz", address(name)?);
    fixture.cluster.ready_within(name, PATIENCE, || {
        let answer = fixture.cluster.command("curl").args(["-s", "--max-time", "5", &url]).output()?;
        let answer = String::from_utf8_lossy(&answer.stdout).into_owned();
        ensure!(answer.contains(words), "{url} answers {answer:?}");
        Ok(())
    })
}
