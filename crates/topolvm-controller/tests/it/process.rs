//! The program itself.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use assert_cmd::cargo::CommandCargoExt as _;
use topolvm_proto::csi::ProbeRequest;
use topolvm_proto::csi::identity_client::IdentityClient;

pub(crate) fn command(arguments: &[&str]) -> std::process::Command {
    let mut command = std::process::Command::cargo_bin("topolvm-controller").unwrap();
    command.args(arguments).env_remove("USE_LEGACY").env("LOG_LEVEL", "info").env("LOG_FORMAT", "text");
    command
}

/// Ends the program when the test fails before it does.
pub(crate) struct Running(pub(crate) Child);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[test]
fn wrong_flags_end_it_with_64_and_say_which() {
    let output = command(&["--minimum-allocation-ext4=much"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("--minimum-allocation-ext4"), "{message}");
}

#[test]
fn times_with_which_two_replicas_could_lead_end_it_with_64() {
    let output = command(&["--leader-election-lease-duration=5s"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("--leader-election-renew-deadline"), "{message}");
}

/// A kubeconfig with the address of an API server that is not there.
pub(crate) fn nobody_listens(dir: &Path) -> PathBuf {
    let kubeconfig = dir.join("kubeconfig");
    let content = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {}}],
    });
    std::fs::write(&kubeconfig, content.to_string()).unwrap();
    kubeconfig
}

#[test]
fn a_directory_in_the_place_of_the_socket_ends_it_with_1_and_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("csi.sock");
    std::fs::create_dir(&socket).unwrap();
    let socket_flag = format!("--csi-socket={}", socket.display());
    let mut program = command(&[&socket_flag, "--metrics-bind-address=", "--health-probe-bind-address="]);
    let output = program.env("KUBECONFIG", nobody_listens(dir.path())).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("csi.sock exists and is not a socket; remove it or set another socket path"), "{message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn without_an_api_server_it_serves_its_socket_is_not_ready_and_stops_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = nobody_listens(dir.path());
    let socket = dir.path().join("csi.sock");
    let socket_flag = format!("--csi-socket={}", socket.display());
    let mut program = command(&[&socket_flag, "--metrics-bind-address=", "--health-probe-bind-address=127.0.0.1:0"]);
    let child = program.env("KUBECONFIG", &kubeconfig).stderr(Stdio::piped()).spawn().unwrap();
    let mut running = Running(child);

    let mut log = BufReader::new(running.0.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(log.any(|line| line.contains("serving CSI")));
    let mut identity = IdentityClient::connect(format!("unix:{}", socket.display())).await.unwrap();
    assert_eq!(identity.probe(ProbeRequest {}).await.unwrap().into_inner().ready, Some(false));
    let warning = log.find(|line| line.contains("cannot watch")).unwrap();
    assert!(warning.contains("check the network, and the API server's address"), "{warning}");

    drop(identity);
    let pid = rustix::process::Pid::from_child(&running.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(log.any(|line| line.contains("stopped")));
    assert_eq!(running.0.wait().unwrap().code(), Some(0));
    assert!(!socket.exists());
}
