//! LVM commands that an earlier lvmd started and that outlived it: a killed lvmd leaves them running. Its successor
//! waits for them, because they may still change the state that it would find.

use std::ffi::OsStr;
use std::io;
use std::time::Duration;

use procfs::process::all_processes;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
// tokio waits for a process as for a pipe
use tokio::net::unix::pipe::Receiver as Process;
use tokio::time::timeout;

/// The environment variable of LVM that names its owner.
pub(super) const OWNER: &str = "TOPOLVM_LVMD_SOCKET";

/// Waits until all of an owner have ended. What still runs at the deadline is asked to end, and then left alone.
pub(super) async fn wait(owner: &str, deadline: Duration, grace: Duration, begin: impl FnOnce(usize) + Send) {
    let orphans = find(owner).unwrap_or_else(|error| {
        tracing::warn!(%error, "cannot search for LVM commands that an earlier lvmd left running");
        Vec::new()
    });
    if orphans.is_empty() {
        return;
    }
    begin(orphans.len());
    if timeout(deadline, until_ended(&orphans)).await.is_ok() {
        return;
    }
    for orphan in &orphans {
        // Fails when it has just ended
        let _ = pidfd_send_signal(orphan, Signal::TERM);
    }
    if timeout(grace, until_ended(&orphans)).await.is_err() {
        tracing::error!(
            "an LVM command of an earlier lvmd does not end; volume groups that it has locked cannot be changed"
        );
    }
}

/// Waits until the processes have ended: the kernel makes the descriptor of a process readable then.
async fn until_ended(orphans: &[Process]) {
    for orphan in orphans {
        // Fails only when the runtime goes away
        let _ended = orphan.readable().await;
    }
}

/// Returns the processes that carry the name of the owner, without daemons that LVM has started (dmeventd), which lead
/// separate sessions and never end.
fn find(owner: &str) -> io::Result<Vec<Process>> {
    let is_orphan = |process: &procfs::process::Process| {
        let variables = process.environ().unwrap_or_default();
        let is_owned = variables.get(OsStr::new(OWNER)).is_some_and(|name| name == owner);
        is_owned && process.stat().is_ok_and(|status| status.session != status.pid)
    };
    let mut found = Vec::new();
    for process in all_processes().map_err(io::Error::other)?.flatten().filter(is_orphan) {
        // The number may be another's by now, but not any more once it is held
        if let Some(pid) = Pid::from_raw(process.pid())
            && let Ok(held) = pidfd_open(pid, PidfdFlags::NONBLOCK)
            && is_orphan(&process)
        {
            found.push(Process::from_owned_fd_unchecked(held)?);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::CommandRunner as _;
    use crate::system::tests::{change, program};

    #[tokio::test]
    async fn orphaned_lvm_command_is_awaited_by_its_owner_only() {
        let dir = tempfile::tempdir().unwrap();
        let (started, go) = (dir.path().join("started"), dir.path().join("go"));
        for path in [&started, &go] {
            rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        }
        let owner = dir.path().display().to_string();
        let body = format!("echo >{}; read line <{}; true", started.display(), go.display());
        let runner = program(&dir, &body).with_owner(owner.clone());
        let commands = [change()];
        let mut running = Box::pin(runner.run(&commands));
        tokio::select! {
            _ = &mut running => panic!("it waits for us"),
            _ = tokio::fs::read(&started) => {}
        }
        drop(running);

        let (begun, said) = mpsc::channel();
        runner.clone().with_owner("another").wait_for_orphans(|_| panic!("it is not theirs")).await;
        let mut waiting = Box::pin(runner.wait_for_orphans(|number| begun.send(number).unwrap()));
        let is_early = timeout(Duration::from_millis(50), &mut waiting).await.is_ok();
        assert!(!is_early && said.try_recv().unwrap() > 0);
        tokio::fs::write(&go, "\n").await.unwrap();
        waiting.await;
        runner.wait_for_orphans(|_| panic!("all have ended")).await;
    }

    #[tokio::test]
    async fn what_does_not_end_is_asked_to_at_the_deadline() {
        let dir = tempfile::tempdir().unwrap();
        let (started, never) = (dir.path().join("started"), dir.path().join("never"));
        for path in [&started, &never] {
            rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        }
        // Not with another program: while the kernel exchanges the two, the process has no environment
        let body = format!("echo >{}; read line <{}; true", started.display(), never.display());
        let runner = program(&dir, &body).with_owner(dir.path().display().to_string());
        let commands = [change()];
        let mut running = Box::pin(runner.run(&commands));
        tokio::select! {
            _ = &mut running => panic!("it waits forever"),
            _ = tokio::fs::read(&started) => {}
        }
        let later = runner.clone().with_deadlines(Duration::from_millis(10), Duration::from_millis(10));
        let (output, ()) = tokio::join!(running, later.wait_for_orphans(|_| {}));
        assert_eq!(output.unwrap().code, None);
    }
}
