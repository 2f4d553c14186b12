//! Tokens that are bound to a deleted Node: programs are not ready while the API server rejects them, report it, read a
//! new token, and exit where only a restart provides one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::ByteString;
use serde_json::{Value, json};
use system_tests::fake_node::FakeNodes;
use testbed::topolvm::{self, CONTROLLER, NODE, account_token};
use tonic::transport::Endpoint;
use topolvm_proto::csi::ProbeRequest;
use topolvm_proto::csi::identity_client::IdentityClient;
use topolvm_testkit::lvm::FakeLvm;

use crate::Body;
use crate::fixture::{Fixture, spec};

pub(crate) const ALL: &[(&str, Body)] = &[("token_of_a_deleted_node_is_reported_and_replaced", lose_node)];

/// Name of the Node.
const SHORT_LIVED: &str = "short-lived";
const LVMD_CONFIG: &str = "device-classes: [{name: ssd, volume-group: myvg1, default: true, spare-gb: 0}]";
const PROCESSES: [Process; 4] = [
    Process { program: CONTROLLER, place: Place::Outside, probes: "127.0.0.1:8191" },
    Process { program: CONTROLLER, place: Place::Container, probes: "127.0.0.1:8192" },
    Process { program: NODE, place: Place::Outside, probes: "127.0.0.1:8193" },
    Process { program: NODE, place: Place::Container, probes: "127.0.0.1:8194" },
];
/// Runs a program with the files that kubelet mounts into a container.
const IN_CONTAINER: &str = r#"mount -t tmpfs tmpfs /run && mkdir -p /run/secrets/kubernetes.io &&
    cp -r "$1" /run/secrets/kubernetes.io/serviceaccount && shift && exec "$@""#;
/// A watch lasts for a minute, and a container ends after two.
const PATIENCE: Duration = Duration::from_mins(6);

/// A process whose token is bound to the Node.
struct Process {
    /// Name of the program and of its ServiceAccount.
    program: &'static str,
    place: Place,
    /// Address of its probes.
    probes: &'static str,
}

#[derive(PartialEq, Eq)]
enum Place {
    /// An administrator writes the file with the token.
    Outside,
    /// As in a container, whose token kubelet writes.
    Container,
}

fn lose_node(fixture: &Fixture) -> Result<()> {
    let nodes = FakeNodes::new(&fixture.cluster, &spec(&[])?)?;
    let files = tempfile::Builder::new().prefix("topolvm-token-").tempdir_in("/var/tmp")?;
    let done = nodes
        .add_without_agent(SHORT_LIVED, &FakeLvm::new().with_group("myvg1", 1 << 30), LVMD_CONFIG)
        .and_then(|()| PROCESSES.iter().try_for_each(|process| process.start(fixture, &nodes, files.path())))
        .and_then(|()| PROCESSES.iter().try_for_each(|process| process.wait_until_ready(fixture)))
        .and_then(|()| replace_node(fixture, &nodes, files.path()));
    for process in &PROCESSES {
        fixture.cluster.stop(&process.name(), Duration::ZERO)?;
    }
    fixture.kubectl(&["delete", "nodes,csinodes", SHORT_LIVED, "--ignore-not-found", "--timeout=180s"])?;
    nodes.stop().and(done)
}

/// Deletes the Node and creates another one of its name. The processes outside continue with new tokens, the others
/// exit.
fn replace_node(fixture: &Fixture, nodes: &FakeNodes<'_>, files: &Path) -> Result<()> {
    fixture.kubectl(&["delete", "node", SHORT_LIVED, "--timeout=180s"])?;
    for process in &PROCESSES {
        process.wait_until_rejected(fixture).with_context(|| process.name())?;
    }
    let agent = PROCESSES.iter().find(|process| process.program == NODE).context("no agent")?;
    let said = nodes.block_on(probe(&agent.socket(files)))?.err().context("the agent is ready")?;
    ensure!(said.contains("401 Unauthorized"), "the agent says to CSI's Probe: {said}");

    fixture.create_node(SHORT_LIVED)?;
    for process in PROCESSES.iter().filter(|process| process.place == Place::Outside) {
        process.write_token(fixture, files)?;
        process.wait_until_ready(fixture).with_context(|| format!("{} with a new token", process.name()))?;
        let log = fs::read_to_string(fixture.cluster.log(&process.name()))?;
        ensure!(!log.contains("in the ClusterRole"), "a right is blamed: {log}");
    }
    nodes.block_on(probe(&agent.socket(files)))?.map_err(|said| anyhow::anyhow!("the agent is not ready: {said}"))?;
    // With the new token the agent writes to the new Node
    fixture.cluster.ready("apiserver", || {
        let free = fixture.value("node", SHORT_LIVED, r".metadata.annotations.capacity\.topolvm\.io/ssd")?;
        ensure!(!free.is_empty(), "the new Node has no free space");
        Ok(())
    })?;

    for process in PROCESSES.iter().filter(|process| process.place == Place::Container) {
        fixture.cluster.ready_within("apiserver", PATIENCE, || {
            let log = fs::read_to_string(fixture.cluster.log(&process.name()))?;
            let has_ended = log.contains("credentials: the Kubernetes API server has rejected");
            ensure!(has_ended, "{} has not ended: {log}", process.name());
            Ok(())
        })?;
    }
    Ok(())
}

/// Sends CSI's Probe, and returns the message of the error if the program is not ready.
async fn probe(socket: &Path) -> Result<Result<(), String>> {
    let channel = Endpoint::try_from(format!("unix:{}", socket.display()))?.connect().await?;
    let answer = IdentityClient::new(channel).probe(ProbeRequest {}).await;
    Ok(answer.map(drop).map_err(|status| status.message().to_owned()))
}

impl Process {
    fn name(&self) -> String {
        let place = if self.place == Place::Outside { "outside" } else { "container" };
        format!("{}-{place}", self.program)
    }

    /// Returns the path of its CSI socket.
    fn socket(&self, files: &Path) -> PathBuf {
        files.join(self.name()).join("csi.sock")
    }

    /// Writes a token that is bound to the Node.
    fn write_token(&self, fixture: &Fixture, files: &Path) -> Result<()> {
        let token = account_token(&fixture.cluster, self.program, Some(SHORT_LIVED))?;
        fs::write(files.join(self.name()).join("token"), token).context("write the token")
    }

    fn start(&self, fixture: &Fixture, nodes: &FakeNodes<'_>, files: &Path) -> Result<()> {
        let cluster = &fixture.cluster;
        let own = files.join(self.name());
        fs::create_dir(&own)?;
        self.write_token(fixture, files)?;
        let usual = fs::read(cluster.directory().join("topolvm-controller.kubeconfig"))?;
        let mut kubeconfig: Value = serde_json::from_slice(&usual)?;
        let mut command = self.command(fixture, nodes, files)?;
        if self.place == Place::Outside {
            kubeconfig["users"][0]["user"] = json!({"tokenFile": own.join("token")});
            fs::write(own.join("kubeconfig"), kubeconfig.to_string())?;
            return cluster.spawn(&self.name(), command.env("KUBECONFIG", own.join("kubeconfig")));
        }

        let cluster_of = &kubeconfig["clusters"][0]["cluster"];
        let authority: ByteString = serde_json::from_value(cluster_of["certificate-authority-data"].clone())?;
        fs::write(own.join("ca.crt"), authority.0)?;
        fs::write(own.join("namespace"), "topolvm-system")?;
        let server = cluster_of["server"].as_str().unwrap_or_default();
        let (host, port) = server.trim_start_matches("https://").rsplit_once(':').context("a server without a port")?;
        let mut container = cluster.command("unshare");
        container.args(["--mount", "sh", "-c", IN_CONTAINER, "sh"]).arg(&own);
        container.args(command.get_args().skip_while(|argument| *argument != "--").skip(1));
        container.env_remove("KUBECONFIG").env("HOME", files).env("POD_NAMESPACE", "topolvm-system");
        container.env("KUBERNETES_SERVICE_HOST", host).env("KUBERNETES_SERVICE_PORT", port);
        cluster.spawn(&self.name(), &container)
    }

    /// Returns the command of a further controller, or of an agent of the Node.
    fn command(&self, fixture: &Fixture, nodes: &FakeNodes<'_>, files: &Path) -> Result<Command> {
        let socket = self.socket(files);
        let mut command = if self.program == NODE {
            nodes.agent_command(SHORT_LIVED, &socket)
        } else {
            let mut controller = topolvm::controller_command(&fixture.cluster, &spec(&[])?, &socket)?;
            controller.arg("--metrics-bind-address=");
            controller
        };
        command.arg(format!("--health-probe-bind-address={}", self.probes));
        Ok(command)
    }

    fn wait_until_ready(&self, fixture: &Fixture) -> Result<()> {
        self.wait_for_answer(fixture, |answer| answer.trim() == "ok")
    }

    fn wait_until_rejected(&self, fixture: &Fixture) -> Result<()> {
        self.wait_for_answer(fixture, |answer| answer.contains("401 Unauthorized"))
    }

    /// Waits until the readiness probe gets an answer of this kind.
    fn wait_for_answer(&self, fixture: &Fixture, is_expected: impl Fn(&str) -> bool) -> Result<()> {
        let url = format!("http://{}/readyz", self.probes);
        fixture.cluster.ready_within(&self.name(), PATIENCE, || {
            let answer = fixture.cluster.command("curl").args(["-s", "--max-time", "5", &url]).output()?;
            let answer = String::from_utf8_lossy(&answer.stdout).into_owned();
            ensure!(is_expected(&answer), "{url} answers {answer:?}");
            Ok(())
        })
    }
}
