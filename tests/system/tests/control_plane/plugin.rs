//! The kubectl plugin against a real API server: a watched status, a support bundle without secrets, and completions.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use system_tests::commands::Commands;
use system_tests::plugin;

use crate::Body;
use crate::doctor::{NODE, with_node};
use crate::fixture::{Fixture, LV};

pub(crate) const ALL: &[(&str, Body)] = &[
    ("status_watch_prints_again_when_volumes_change", watch_status),
    ("a_support_bundle_has_the_objects_and_no_secrets", create_bundle),
    ("plugin_writes_completions_and_manual_page_and_prints_version", write_completions),
];

/// Timeout for the next print of a change.
const PRINTED: Duration = Duration::from_mins(1);

fn watch_status(fixture: &Fixture) -> Result<()> {
    with_node(fixture, || {
        let mut command = plugin::command(&fixture.cluster, &fixture.cluster.inner_kubeconfig())?;
        command.args(["status", "--watch"]).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().context("run kubectl topolvm")?;
        let output = child.stdout.take().context("kubectl topolvm has no output")?;
        let (sender, lines) = mpsc::channel();
        // It ends with the output
        let reader = thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            lines.map(|line| sender.send(line)).take_while(Result::is_ok).for_each(drop);
        });
        let done = change_and_read(fixture, &lines);
        child.kill()?;
        child.wait()?;
        drop(reader.join());
        done
    })
}

fn change_and_read(fixture: &Fixture, lines: &Receiver<String>) -> Result<()> {
    let wait = |expected: &[&str]| -> Result<()> {
        let end = Instant::now() + PRINTED;
        loop {
            let line = lines.recv_timeout(end.saturating_duration_since(Instant::now()));
            let line = line.with_context(|| format!("not printed: {expected:?}"))?;
            if line.split_whitespace().eq(expected.iter().copied()) {
                return Ok(());
            }
        }
    };
    let empty = [NODE, "ssd", "(default)", "10Gi", "10Gi", "0", "0%", "0"];
    wait(&empty)?;
    fixture.create_volume("watched", NODE)?;
    wait(&[NODE, "ssd", "(default)", "11Gi", "10Gi", "1Gi", "9%", "1"])?;
    fixture.kubectl(&["delete", LV, "watched", "--wait=false"])?;
    let patch = r#"{"metadata":{"finalizers":null}}"#;
    fixture.kubectl(&["patch", LV, "watched", "--type=merge", "-p", patch])?;
    wait(&empty)
}

fn create_bundle(fixture: &Fixture) -> Result<()> {
    fixture.apply(&json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "bundled", "namespace": "topolvm-system"},
        "data": {"settings": "class: ssd\npassword: hunter2\n"},
    }))?;
    fixture.apply(&json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "bundled", "namespace": "topolvm-system"},
        "stringData": {"key": "hunter3"},
    }))?;
    let file = fixture.cluster.directory().join("bundle.tar.gz");
    let path = file.to_str().context("the path of the bundle is not UTF-8")?;
    let kubeconfig = fixture.cluster.inner_kubeconfig();
    let answer = plugin::run(&fixture.cluster, &kubeconfig, &["support-bundle", "-f", path])?;
    ensure!(answer.is_success && answer.text.trim() == path, "{answer:?}");
    let output = fixture.cluster.command("tar").args(["--list", "-zf", path]).output()?;
    let names = String::from_utf8_lossy(&output.stdout).into_owned();
    for name in [
        "/doctor.yaml",
        "/not-included.txt",
        "/objects/logicalvolumes.topolvm.io.yaml",
        "/objects/csidrivers.storage.k8s.io.yaml",
        "/objects/configmaps.yaml",
        "/objects/leases.coordination.k8s.io.yaml",
    ] {
        ensure!(names.lines().any(|line| line.ends_with(name)), "no {name} in {names}");
    }
    ensure!(!names.contains("secrets"), "Secrets are in it: {names}");
    let output = fixture.cluster.command("tar").args(["--extract", "--to-stdout", "-zf", path]).output()?;
    let all = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(all.contains("class: ssd") && all.contains("REDACTED"), "the ConfigMap is not as expected");
    ensure!(!all.contains("hunter"), "a secret is in the bundle");
    Ok(())
}

fn write_completions(fixture: &Fixture) -> Result<()> {
    let directory = tempfile::tempdir().context("create a directory for the files")?;
    let commands = Commands::of("kubectl-topolvm.md", "completions and man")?;
    let said = commands.run_in(&fixture.cluster, directory.path())?;
    ensure!(said.contains(env!("CARGO_PKG_VERSION")), "the version is {said:?}");
    let read = |name: &str| fs::read_to_string(directory.path().join(name)).with_context(|| format!("read {name}"));
    ensure!(read("kubectl-topolvm.bash")?.contains("complete "), "no completions for bash");
    ensure!(read("kubectl-topolvm.1")?.contains(".SH"), "no manual page");
    Ok(())
}
