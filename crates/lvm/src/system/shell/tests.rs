//! IdleShells that wait, work, hang, ask and die. Their "lvm" is a script.

use std::fs;

use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

use super::*;
use crate::CommandRunner as _;
use crate::system::tests::{change, program, read};
use crate::system::{GRACE, IDLE_TIMEOUT, ShellRetry, SystemRunner};

/// Returns a runner whose "lvm" notes its process id and is a shell that does this with each `$line`.
fn shell(dir: &TempDir, body: &str) -> SystemRunner {
    let body = format!(
        r#"here={}; echo $$ >>$here/started; [ $# = 0 ] || exit 9
        while IFS= read -r line; do case $line in
            formats) echo "  lvm2" ;;
            lvmconfig*) ;;
            end-of-commands-*) echo "  No such command '$line'.  Try 'help'." >&2 ;;
            *) {body} ;;
        esac; done"#,
        dir.path().display()
    );
    program(dir, &body)
}

/// Returns the process ids of the shells so far.
fn started(dir: &TempDir) -> Vec<i32> {
    let text = fs::read_to_string(dir.path().join("started")).unwrap();
    text.lines().map(|line| line.parse().unwrap()).collect()
}

/// Returns true if a process is gone or a zombie that its parent has not collected yet.
fn is_gone(pid: i32) -> bool {
    let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    state.is_empty() || state.contains(") Z ")
}

async fn until_gone(pid: i32) {
    let start = Instant::now();
    while !is_gone(pid) {
        assert!(start.elapsed() < GRACE, "it goes on");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn several_commands_are_one_process_and_the_next_ones_none() {
    let dir = tempfile::tempdir().unwrap();
    let runner = shell(&dir, r#"echo "did $line"; echo "about $line" >&2"#);
    for processes in [1, 0, 0] {
        let output = runner.run(&[change(), read()]).await.unwrap();
        assert_eq!((output.code, output.processes), (Some(0), processes));
        for line in [change(), read()].map(|command| command.shell_line().unwrap()) {
            assert!(String::from_utf8_lossy(&output.stdout).contains(&format!("did {line}\n")), "{output:?}");
            assert!(output.stderr.contains(&format!("about {line}\n")), "{output:?}");
        }
        assert!(!output.stderr.contains("No such command"), "{output:?}");
    }
    assert_eq!(started(&dir).len(), 1);
}

#[tokio::test]
async fn changes_at_the_same_time_do_not_wait_for_one_shell() {
    let dir = tempfile::tempdir().unwrap();
    let runner = shell(&dir, r#"echo "did $line""#);
    let commands = [change(), change()];
    let (one, other) = tokio::join!(runner.run(&commands), runner.run(&commands));
    assert_eq!(one.unwrap().stdout, other.unwrap().stdout);
    assert_eq!(started(&dir).len(), 2);
}

#[tokio::test]
async fn shell_output_is_read_completely_for_all_its_commands() {
    let dir = tempfile::tempdir().unwrap();
    let runner = shell(&dir, "head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2; echo >&2");
    for _ in 0..3 {
        let output = runner.run(&[change(), change()]).await.unwrap();
        assert_eq!((output.stdout.len(), output.stderr.len()), (600_000, 600_002));
    }
    assert_eq!(started(&dir).len(), 1);
}

#[tokio::test]
async fn a_shell_that_was_killed_while_it_waited_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let runner = shell(&dir, r#"echo "did $line""#);
    let commands = [change(), change()];
    let before = runner.run(&commands).await.unwrap();
    let first = started(&dir)[0];
    kill_process_group(Pid::from_raw(first).unwrap(), Signal::KILL).unwrap();
    until_gone(first).await;
    let after = runner.run(&commands).await.unwrap();
    assert_eq!((after.code, after.stdout), (Some(0), before.stdout));
    assert_eq!(started(&dir).len(), 2);
}

#[tokio::test]
async fn a_shell_that_is_killed_at_work_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let runner = shell(&dir, "echo begun; kill -9 $$");
    let output = runner.run(&[change(), change()]).await.unwrap();
    assert_eq!((output.code, output.stdout), (None, b"begun\n".to_vec()));
}

#[tokio::test]
async fn a_shell_that_asks_is_not_answered() {
    let dir = tempfile::tempdir().unwrap();
    let body =
        r#"printf 'Really? [y/n]: ' >&2; while read -r answer; do echo "answered $answer"; done; echo unanswered"#;
    let runner = shell(&dir, body);
    let output = runner.run(&[change(), read()]).await.unwrap();
    // The report was taken as an answer, and the caller does not hang
    assert!(output.stdout.ends_with(b"unanswered\n"), "{output:?}");
    assert_eq!(output.code, Some(0));
}

#[tokio::test]
async fn a_shell_that_hangs_is_stopped_at_the_deadline_and_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let body = "if [ -e $here/hang ]; then rm $here/hang; sleep 1000; fi; echo done";
    let runner = shell(&dir, body).with_deadlines(Duration::from_millis(500), Duration::from_millis(500));
    fs::write(dir.path().join("hang"), "").unwrap();
    let error = runner.run(&[change(), change()]).await.unwrap_err();
    assert!(matches!(error, RunError::Timeout(_)), "{error}");
    until_gone(started(&dir)[0]).await;
    assert_eq!(runner.run(&[change(), change()]).await.unwrap().stdout, b"done\ndone\n");
}

#[tokio::test]
async fn idle_shells_end_after_the_timeout_and_with_their_runner() {
    let dir = tempfile::tempdir().unwrap();
    let runner = SystemRunner { shells: IdleShells::new(Duration::from_millis(20)), ..shell(&dir, "echo") };
    runner.run(&[change(), change()]).await.unwrap();
    until_gone(started(&dir)[0]).await;
    let runner = SystemRunner { shells: IdleShells::new(IDLE_TIMEOUT), ..runner };
    runner.run(&[change(), change()]).await.unwrap();
    assert!(!is_gone(started(&dir)[1]));
    drop(runner);
    until_gone(started(&dir)[1]).await;
}

#[tokio::test]
async fn commands_run_as_processes_if_the_shell_buffers_its_output() {
    let dir = tempfile::tempdir().unwrap();
    // Its input ends before it says anything
    let runner = program(
        &dir,
        r#"if [ $# = 0 ]; then read -r line; read -r line; read -r end; echo "no $end" >&2; else echo "$1"; fi"#,
    );
    let output = runner.run(&[change(), change()]).await.unwrap();
    assert_eq!((output.stdout, output.processes), (b"lvremove\nlvremove\n".to_vec(), 2));
}

#[tokio::test]
async fn a_shell_that_was_slow_once_is_tried_again() {
    let dir = tempfile::tempdir().unwrap();
    // The first one hangs
    let body = format!(
        r#"here={}; echo $$ >>$here/started
        if [ $# -gt 0 ]; then echo "$1"; exit; fi
        [ -e $here/was-slow ] || {{ touch $here/was-slow; exec sleep 1000; }}
        while IFS= read -r line; do case $line in
            formats) echo "  lvm2" ;;
            lvmconfig*) ;;
            end-of-commands-*) echo "  No such command '$line'." >&2 ;;
            *) echo "${{line%% *}}" ;;
        esac; done"#,
        dir.path().display()
    );
    let hurried = SystemRunner { handshake: Duration::from_millis(100), ..program(&dir, &body) };
    let commands = [change(), change()];
    // Neither is asked in vain again and again: while the pause lasts each command gets a process
    for _ in 0..2 {
        let output = hurried.run(&commands).await.unwrap();
        assert_eq!((output.processes, output.stdout), (2, b"lvremove\nlvremove\n".to_vec()));
    }
    assert_eq!(started(&dir).len(), 5);
    let shell_retry = Arc::new(ShellRetry::new(Duration::ZERO));
    shell_retry.failed(UnusableShell::Slow);
    let later = SystemRunner { handshake: GRACE, shell_retry, ..hurried };
    let output = later.run(&commands).await.unwrap();
    assert_eq!((output.processes, output.stdout), (1, b"lvremove\nlvremove\n".to_vec()));
}

#[tokio::test]
async fn a_shell_whose_reports_have_another_form_is_not_used() {
    for setting in ["output_format=\"json\"", "report_command_log=1"] {
        let dir = tempfile::tempdir().unwrap();
        let body = format!(
            r#"[ $# = 0 ] || {{ echo "$1"; exit; }}
            while IFS= read -r line; do case $line in
                formats) echo "  lvm2" ;;
                lvmconfig*) echo '  {setting}' ;;
                end-of-commands-*) echo "  No such command '$line'." >&2 ;;
            esac; done"#
        );
        let output = program(&dir, &body).run(&[change(), change()]).await.unwrap();
        assert_eq!((output.processes, output.stdout), (2, b"lvremove\nlvremove\n".to_vec()), "{setting}");
    }
}

#[tokio::test]
async fn what_a_program_says_that_cannot_begin_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let runner = program(&dir, "echo 'cannot enter' >&2; exit 1");
    let output = runner.run(&[change(), change()]).await.unwrap();
    assert_eq!((output.code, output.stderr.as_str()), (Some(1), "cannot enter\n"));
}
