//! The program itself: its flags and how it ends.

use assert_cmd::Command;

fn program() -> Command {
    let mut command = Command::cargo_bin("topolvm-node").unwrap();
    command.env_clear();
    command
}

#[test]
fn the_flags_are_those_that_deployments_use() {
    let output = program().arg("--help").output().unwrap();
    assert!(output.status.success());
    insta::assert_snapshot!(String::from_utf8(output.stdout).unwrap());
}

#[test]
fn a_missing_node_name_ends_with_64_and_names_the_flag() {
    let output = program().output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    let expected = "topolvm-node: node name not set; set --nodename or the environment variable NODE_NAME to the name \
                    of the Node object\n";
    assert_eq!(String::from_utf8(output.stderr).unwrap(), expected);
}

#[test]
fn an_unknown_flag_ends_with_64() {
    let output = program().args(["--nodename=n1", "--zap-level=debug"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
}

#[test]
fn invalid_metrics_address_exits_with_64_and_names_the_flag() {
    let output = program().args(["--nodename=n1", "--metrics-bind-address=8080"]).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(64), "{message}");
    assert!(message.contains("--metrics-bind-address"), "{message}");
}

/// Flags and environment of an agent that finds no API server.
fn without_api_server(dir: &std::path::Path) -> Command {
    let kubeconfig = dir.join("kubeconfig");
    let unreachable = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {}}],
    });
    std::fs::write(&kubeconfig, unreachable.to_string()).unwrap();
    let mut command = program();
    command.env("KUBECONFIG", kubeconfig).args(["--nodename=n1", "--embed=none", "--metrics-bind-address="]);
    command
}

#[test]
fn csi_socket_path_of_a_directory_exits_with_1_and_a_fix() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("csi.sock");
    std::fs::create_dir(&socket).unwrap();
    let output = without_api_server(dir.path()).arg("--csi-socket").arg(&socket).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("csi.sock exists and is not a socket; remove it or set another socket path"), "{message}");
}

#[test]
fn missing_kubeconfig_exits_with_1_and_names_the_setting() {
    let output = program().args(["--nodename=n1", "--log-level=off"]).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("set KUBECONFIG to a kubeconfig file"), "{message}");
}
