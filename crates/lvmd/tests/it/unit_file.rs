//! systemd/lvmd.service, judged by systemd's own tools.
#![expect(clippy::disallowed_methods, clippy::print_stdout, reason = "the judge is a process, and may be missing")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

/// A copy of the unit that starts the lvmd of this build, because `verify` wants the program to be there. With a
/// drop-in, if any.
fn unit(drop_in: &str) -> TempDir {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../systemd/lvmd.service");
    let text = fs::read_to_string(source).unwrap();
    assert!(text.contains("ExecStart=/opt/sbin/lvmd --metrics-bind-address=127.0.0.1:8080\n"));
    let text = text.replace("/opt/sbin/lvmd", assert_cmd::cargo::cargo_bin!("lvmd").to_str().unwrap());
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("lvmd.service"), format!("{text}\n[Service]\n{drop_in}\n")).unwrap();
    dir
}

/// The output of `systemd-analyze` about it; `None` on a machine without.
fn analyze(unit: &TempDir, args: &[&str]) -> Option<Output> {
    let analyzed = Command::new("systemd-analyze").args(args).arg(unit.path().join("lvmd.service")).output();
    if analyzed.is_err() {
        println!("skipped: there is no systemd-analyze");
    }
    analyzed.ok()
}

/// Its exposure level: 0 is not at all, 10 is entirely.
fn assert_exposure(drop_in: &str, most: f64) {
    if let Some(output) = analyze(&unit(drop_in), &["security", "--offline=true", "--no-pager"]) {
        let text = String::from_utf8(output.stdout).unwrap();
        let (_, number) = text.split_once("Overall exposure level for lvmd.service: ").expect(&text);
        let exposure: f64 = number.split(' ').next().unwrap().parse().unwrap();
        assert!(exposure <= most, "{text}");
    }
}

#[test]
fn systemd_finds_nothing_wrong_with_the_unit() {
    if let Some(output) = analyze(&unit(""), &["verify", "--man=no"]) {
        let said = String::from_utf8(output.stderr).unwrap();
        // A mistake in a line is a warning, and the exit status is 0
        assert!(output.status.success() && !said.contains("lvmd.service"), "{said}");
    }
}

#[test]
fn the_unit_gives_away_what_neither_lvmd_nor_lvm_needs() {
    assert_exposure("", 4.0);
}

#[test]
fn without_nsenter_a_drop_in_can_give_away_more() {
    assert_exposure("CapabilityBoundingSet=~CAP_SYS_PTRACE CAP_SYS_CHROOT\nRestrictNamespaces=yes", 3.0);
}
