//! The command line.

use std::io::Write as _;

use assert_cmd::Command;
use assert_cmd::cargo::CommandCargoExt as _;

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

/// Ends the program when the test does.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// The shipped file names 127.0.0.1 for kube-scheduler, and an administrator's may name `localhost` or `[::1]`.
#[test]
fn shipped_listen_address_answers_on_both_loopback_addresses() {
    let shipped = include_str!("../../../../scheduler-config/scheduler-options.yaml");
    let line = shipped.lines().find(|line| line.starts_with("listen:")).unwrap();
    assert_eq!(line, r#"listen: "localhost:9251""#);
    let port = std::net::TcpListener::bind("[::1]:0").unwrap().local_addr().unwrap().port();
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(line.replace("9251", &port.to_string()).as_bytes()).unwrap();
    let mut command = std::process::Command::cargo_bin("topolvm-scheduler").unwrap();
    let mut running = Running(command.arg("--config").arg(file.path()).spawn().unwrap());
    let addresses = ["127.0.0.1", "::1"].map(|ip| std::net::SocketAddr::new(ip.parse().unwrap(), port));
    // When it listens on one it listens on all
    while addresses.iter().all(|address| std::net::TcpStream::connect(address).is_err()) {
        assert_eq!(running.0.try_wait().unwrap(), None, "it has ended");
        std::thread::yield_now();
    }
    for ip in addresses {
        let mut connection = std::net::TcpStream::connect(ip).unwrap();
        connection.write_all(b"GET /status HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
        let answer = std::io::read_to_string(connection).unwrap();
        assert!(answer.ends_with("ok"), "{ip}: {answer}");
    }
}

#[test]
fn invalid_metrics_address_exits_with_64_and_names_the_flag() {
    let output = program().arg("--metrics-bind-address=localhost").output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(64), "{message}");
    assert!(message.contains("--metrics-bind-address"), "{message}");
}
