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
    insta::assert_snapshot!(
        String::from_utf8(output.stderr).unwrap(),
        @"topolvm-node: the node's name is not given; set --nodename or the environment variable NODE_NAME to the name of the Node object
    "
    );
}

#[test]
fn an_unknown_flag_ends_with_64() {
    let output = program().args(["--nodename=n1", "--zap-devel"]).output().unwrap();
    assert_eq!(output.status.code(), Some(64));
}
