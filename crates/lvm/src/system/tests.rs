use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Instant;

use tempfile::TempDir;

use super::*;

/// Returns a runner whose "lvm" is this shell script.
pub(super) fn program(dir: &TempDir, body: &str) -> SystemRunner {
    let path = dir.path().join("lvm");
    fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    SystemRunner::new(&[path.to_str().unwrap()]).unwrap()
}

pub(super) fn read() -> LvmCommand {
    LvmCommand::report([])
}

pub(super) fn change() -> LvmCommand {
    LvmCommand::remove(&"vg".parse().unwrap(), &"lv".parse().unwrap())
}

#[tokio::test]
async fn status_and_both_outputs_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let runner = program(&dir, r#"echo "got $*"; echo oops >&2; exit 5"#);
    let output = runner.run(&[change()]).await.unwrap();
    assert_eq!(
        output,
        Output {
            code: Some(5),
            stdout: format!("got {}\n", change().process_words().join(" ")).into(),
            stderr: "oops\n".to_owned(),
            processes: 1,
        }
    );
}

#[tokio::test]
async fn the_prefix_comes_first() {
    let runner = SystemRunner::new(&["echo", "-m", "/sbin/lvm"]).unwrap();
    let expected = format!("-m /sbin/lvm {}\n", change().process_words().join(" "));
    assert_eq!(String::from_utf8(runner.run(&[change()]).await.unwrap().stdout).unwrap(), expected);
}

#[tokio::test]
async fn the_environment_is_fixed_and_there_is_no_input() {
    let dir = tempfile::tempdir().unwrap();
    let body = "/usr/bin/env | grep -v -e ^_= -e ^PWD= -e ^OLDPWD= -e ^SHLVL= | sort; pwd; cat";
    let runner = program(&dir, body).with_owner("/a.sock");
    let output = runner.run(&[read()]).await.unwrap();
    let expected =
        format!("LC_ALL=C\nLVM_SUPPRESS_FD_WARNINGS=1\nPATH={SEARCH_PATH}\nTOPOLVM_LVMD_SOCKET=/a.sock\n/\n");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
}

#[tokio::test]
async fn lvm_gets_only_variables_that_it_may_have() {
    let dir = tempfile::tempdir().unwrap();
    let variables = [("LVM_SYSTEM_DIR", "/run/lvm"), ("LC_ALL", "de_DE"), ("LVM_OUT_FD", "7"), ("HOME", "/root")];
    let variables = variables.map(|(name, value)| (name.into(), value.into()));
    let runner = program(&dir, "/usr/bin/env | grep -e ^LVM_ -e ^LC_ -e ^HOME | sort").with_environment(variables);
    let output = runner.run(&[read()]).await.unwrap();
    let expected = "LC_ALL=C\nLVM_SUPPRESS_FD_WARNINGS=1\nLVM_SYSTEM_DIR=/run/lvm\n";
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
}

#[tokio::test]
async fn megabytes_on_both_pipes_do_not_block() {
    let dir = tempfile::tempdir().unwrap();
    let runner =
        program(&dir, "head -c 1000000 /dev/zero >&2; head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2");
    let output = runner.run(&[read()]).await.unwrap();
    assert_eq!((output.stdout.len(), output.stderr.len()), (1_000_000, 2_000_000));
}

/// Returns whether a process is gone, or a zombie until its parent collects it.
fn is_gone(pid: &str) -> bool {
    let state = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    state.is_empty() || state.contains(") Z ")
}

#[tokio::test]
async fn what_hangs_is_stopped_at_its_deadline_with_its_children() {
    let dir = tempfile::tempdir().unwrap();
    let pid = dir.path().join("pid");
    // Like nsenter, the child goes on when only its parent gets the signal.
    let runner =
        program(&dir, &format!("sh -c 'echo $$ >{0}.new; mv {0}.new {0}; exec sleep 1000' & wait", pid.display()))
            .with_deadlines(Duration::from_millis(500), Duration::from_millis(500));
    let start = Instant::now();
    let error = runner.run(&[change()]).await.unwrap_err();
    assert!(matches!(error, RunError::Timeout(_)), "{error}");
    assert!(start.elapsed() < GRACE);
    let pid = fs::read_to_string(&pid).unwrap();
    // The kernel takes a moment.
    while !is_gone(&pid) {
        assert!(start.elapsed() < GRACE, "it goes on");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn lvm_change_survives_a_dropped_caller_and_a_read_does_not() {
    let dir = tempfile::tempdir().unwrap();
    let (started, go, done) = (dir.path().join("started"), dir.path().join("go"), dir.path().join("done"));
    for path in [&started, &go, &done] {
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    }
    let body = format!(
        "echo $$ >{}; read line <{}; echo out; echo err >&2; echo $1 >{}",
        started.display(),
        go.display(),
        done.display()
    );
    let runner = program(&dir, &body);
    for (command, survives) in [(read(), false), (change(), true)] {
        let commands = [command];
        let mut running = Box::pin(runner.run(&commands));
        let pid = tokio::select! {
            _ = &mut running => panic!("it waits for us"),
            pid = tokio::fs::read_to_string(&started) => pid.unwrap(),
        };
        drop(running);
        // A read that is about to end would take what is written for the change
        while !survives && !is_gone(&pid) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    // Opening the pipe for writing waits for its reader: the change, the only one left.
    tokio::fs::write(&go, "\n").await.unwrap();
    let text = tokio::fs::read_to_string(&done).await.unwrap();
    assert_eq!(text, "lvremove\n");
}

#[tokio::test]
async fn a_broken_pipe_kills_nothing_that_was_started() {
    let dir = tempfile::tempdir().unwrap();
    let runner = program(&dir, "grep SigIgn /proc/$$/status");
    let output = runner.run(&[change()]).await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let ignored = u64::from_str_radix(text.trim().rsplit('\t').next().unwrap(), 16).unwrap();
    assert_ne!(ignored & (1 << 12), 0, "SIGPIPE, the 13th: {text}");
}

#[tokio::test]
async fn a_change_that_ignores_its_deadline_is_never_killed() {
    let dir = tempfile::tempdir().unwrap();
    let (go, done) = (dir.path().join("go"), dir.path().join("done"));
    for path in [&go, &done] {
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    }
    let body =
        format!("trap '' TERM; read line <{}; head -c 1000000 /dev/zero; echo whole >{}", go.display(), done.display());
    let moment = Duration::from_millis(50);
    let runner = SystemRunner { grace: moment, ..program(&dir, &body) }.with_deadlines(moment, moment);
    assert!(matches!(runner.run(&[change()]).await, Err(RunError::Timeout(_))));
    // Its output is not read any more
    tokio::fs::write(&go, "\n").await.unwrap();
    assert_eq!(tokio::fs::read_to_string(&done).await.unwrap(), "whole\n");
}

#[tokio::test]
async fn a_program_that_is_missing_is_named() {
    let runner = SystemRunner::new(&["/nonexistent/lvm"]).unwrap();
    let error = runner.run(&[read()]).await.unwrap_err();
    assert!(error.to_string().starts_with("cannot start /nonexistent/lvm"), "{error}");
}

#[tokio::test]
async fn lvm_without_a_shell_runs_processes_and_failure_ends_changes() {
    let dir = tempfile::tempdir().unwrap();
    let body = r#"[ $# = 0 ] && exit 3; echo "$1"; [ "$1" = lvremove ] && { echo no >&2; exit 5; }; exit 0"#;
    let runner = program(&dir, body);
    let commands = [change(), change(), read()];
    for _ in 0..2 {
        let output = runner.run(&commands).await.unwrap();
        let expected =
            Output { code: Some(5), stdout: b"lvremove\nfullreport\n".into(), stderr: "no\n".to_owned(), processes: 2 };
        assert_eq!(output, expected);
    }
}

#[test]
fn a_prefix_without_a_program_is_refused() {
    assert!(matches!(SystemRunner::new::<&str>(&[]), Err(PrefixError::Empty)));
    assert!(matches!(SystemRunner::new(&[""]), Err(PrefixError::Empty)));
    assert!(matches!(SystemRunner::new(&["no-such-program-anywhere"]), Err(PrefixError::NotFound(_))));
}
