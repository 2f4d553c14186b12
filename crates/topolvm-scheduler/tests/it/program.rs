//! The command line.

use std::io::Write as _;

use assert_cmd::Command;

fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_topolvm-scheduler"));
    command.env_clear();
    command
}

#[test]
fn the_flags_are_those_of_the_field() {
    let output = program().arg("--help").output().unwrap();
    assert!(output.status.success());
    insta::assert_snapshot!(String::from_utf8(output.stdout).unwrap());
}

#[test]
fn a_bad_configuration_ends_with_64_and_names_every_wrong_value() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(b"default-divisor: 0\nlisten: nowhere\n").unwrap();
    let output = program().arg("--config").arg(file.path()).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(message.contains("default-divisor must be a number greater than 0"), "{message}");
    assert!(message.contains("listen must be an address"), "{message}");
}

#[test]
fn a_missing_file_and_an_unknown_flag_end_with_64() {
    for arguments in [&["--config", "/nonexistent.yaml"][..], &["--confog", "x"]] {
        assert_eq!(program().args(arguments).output().unwrap().status.code(), Some(64));
    }
}

#[test]
fn without_a_configuration_file_it_listens_where_topolvms_does() {
    let _taken = std::net::TcpListener::bind("0.0.0.0:8000");
    let output = program().output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("8000"), "{message}");
}

#[test]
fn a_port_that_cannot_be_had_is_a_failure_that_names_it() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(format!("listen: \"{address}\"\n").as_bytes()).unwrap();
    let output = program().arg("--config").arg(file.path()).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(message.contains(&address), "{message}");
}
