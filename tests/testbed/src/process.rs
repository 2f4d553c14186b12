//! Processes that outlive the program which started them, with pid files.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Interval of the checks that a process has ended. A stopped one has within a few of these.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The identity of a process, and never of another one that got its number later: the kernel gives no two processes the
/// same number *and* start time until the next reboot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Field 22 of `/proc/PID/stat`: clock ticks between boot and the start of the process.
    pub start_time: u64,
}

impl Process {
    /// Returns the identity of the present program.
    pub fn current() -> Result<Self> {
        Self::of(std::process::id()).context("this process is not in /proc: is /proc mounted?")
    }

    /// Returns the process that has this id now; `None` when there is none or it is a zombie.
    pub fn of(pid: u32) -> Option<Self> {
        Some(Self { pid, start_time: start_time(pid)? })
    }

    /// Reads a pid file of [`spawn`]; `None` when there is no such file.
    pub fn from_file(path: &Path) -> Result<Option<Self>> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e).with_context(|| format!("read {}", path.display())),
        };
        let mut fields = text.split_whitespace();
        let (Some(pid), Some(start), None) = (fields.next(), fields.next(), fields.next()) else {
            bail!(
                "{} does not say \"PID STARTTIME\"; remove it once you know that its process has ended",
                path.display()
            );
        };
        let not_a_number = || format!("{} has something else than numbers in it", path.display());
        Ok(Some(Self {
            pid: pid.parse().with_context(not_a_number)?,
            start_time: start.parse().with_context(not_a_number)?,
        }))
    }

    /// Writes a pid file, `PID STARTTIME`, complete or not at all.
    pub fn write(&self, path: &Path) -> Result<()> {
        let temporary = path.with_extension("tmp");
        fs::write(&temporary, format!("{} {}\n", self.pid, self.start_time))
            .and_then(|()| fs::rename(&temporary, path))
            .with_context(|| format!("write {}", path.display()))
    }

    /// Returns true while it runs. A zombie has ended: it holds no file, port or memory any more.
    pub fn is_alive(&self) -> bool {
        start_time(self.pid) == Some(self.start_time)
    }

    /// Sends a signal; nothing happens when the process has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw) else {
            bail!("{} is no process id", self.pid);
        };
        // The descriptor pins the process, so that the id cannot be reused between the check and the signal.
        let fd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(fd) => fd,
            Err(Errno::SRCH) => return Ok(()),
            Err(e) => return Err(e).with_context(|| format!("open process {}", self.pid)),
        };
        if !self.is_alive() {
            return Ok(());
        }
        match pidfd_send_signal(fd, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(e) => Err(e).with_context(|| format!("send signal {} to process {}", signal.as_raw(), self.pid)),
        }
    }

    /// Waits until it has ended; `false` when it still runs after `limit`.
    pub fn wait(&self, limit: Duration) -> bool {
        let end = Instant::now() + limit;
        while self.is_alive() {
            if Instant::now() >= end {
                return false;
            }
            sleep(POLL_INTERVAL);
        }
        true
    }

    /// Stops it: TERM first, KILL after `grace`, at once without any. Waits until it has ended, so that its ports and
    /// files are free.
    pub fn stop(&self, grace: Duration) -> Result<()> {
        if !grace.is_zero() {
            self.signal(Signal::TERM)?;
            if self.wait(grace) {
                return Ok(());
            }
        }
        self.signal(Signal::KILL)?;
        if self.wait(Duration::from_secs(30)) {
            return Ok(());
        }
        bail!("process {} does not end although it was killed: see /proc/{}/stack and dmesg", self.pid, self.pid)
    }
}

/// Starts a program that outlives this one, in a separate session, so that a Ctrl-C at the terminal does not reach it.
///
/// Standard input is empty, standard output and error are appended to `log`, and `pid_file` has its identity. The
/// program, arguments, directory and changes to the environment of `command` count; its standard streams and
/// `env_clear` do not.
pub fn spawn(command: &Command, log: &Path, pid_file: &Path) -> Result<Process> {
    if let Some(old) = Process::from_file(pid_file)?
        && old.is_alive()
    {
        bail!("{} names process {}, which still runs: stop it first", pid_file.display(), old.pid);
    }
    let output = OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)
        .with_context(|| format!("open the log {}", log.display()))?;
    // setsid(1) replaces itself as long as it leads no process group, so the id is that of the program.
    let mut session = Command::new("setsid");
    session.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => session.env(name, value),
            None => session.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        session.current_dir(directory);
    }
    let child = session
        .stdin(Stdio::null())
        .stdout(output.try_clone().context("share the log")?)
        .stderr(output)
        .spawn()
        .with_context(|| format!("start {}", command.get_program().display()))?;
    let Some(process) = Process::of(child.id()) else {
        bail!("{} ended at once: see {}", command.get_program().display(), log.display());
    };
    process.write(pid_file)?;
    Ok(process)
}

/// Stops the process in a pid file with [`Process::stop`], and removes the file. Does nothing when there is none.
pub fn stop_file(pid_file: &Path, grace: Duration) -> Result<()> {
    let Some(process) = Process::from_file(pid_file)? else { return Ok(()) };
    process.stop(grace)?;
    fs::remove_file(pid_file).with_context(|| format!("remove {}", pid_file.display()))
}

fn start_time(pid: u32) -> Option<u64> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Returns the start time in `/proc/PID/stat` (proc(5)): the name is in parentheses and may itself contain spaces and
/// parentheses; the state follows, and 19 fields later the start time.
fn parse_stat(stat: &str) -> Option<u64> {
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ');
    match fields.next()? {
        "Z" | "X" => None,
        _ => fields.nth(18)?.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper(directory: &Path) -> Process {
        let mut command = Command::new("sleep");
        command.arg("1000");
        spawn(&command, &directory.join("log"), &directory.join("pid")).unwrap()
    }

    #[test]
    fn the_start_time_is_found_behind_a_name_with_parentheses() {
        let stat = "7 (a) b) (c) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 0 0";
        assert_eq!(parse_stat(stat), Some(4711));
        assert_eq!(parse_stat(&stat.replace(") S", ") Z")), None);
    }

    #[test]
    fn a_spawned_process_is_found_again_by_its_file_and_stopped() {
        let directory = tempfile::tempdir().unwrap();
        let process = sleeper(directory.path());
        assert_eq!(Process::from_file(&directory.path().join("pid")).unwrap(), Some(process));
        assert!(process.is_alive());
        stop_file(&directory.path().join("pid"), Duration::from_secs(5)).unwrap();
        assert!(!process.is_alive());
        assert_eq!(Process::from_file(&directory.path().join("pid")).unwrap(), None);
    }

    #[test]
    fn a_process_that_ignores_term_is_killed() {
        let directory = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        // An ignored signal stays ignored, and no child is left behind
        command.args(["-c", "trap '' TERM; echo ready; exec sleep 1000"]);
        let log = directory.path().join("log");
        let process = spawn(&command, &log, &directory.path().join("pid")).unwrap();
        while fs::read_to_string(&log).unwrap() != "ready\n" {
            sleep(POLL_INTERVAL);
        }
        process.stop(Duration::from_millis(50)).unwrap();
        assert!(!process.is_alive());
    }

    #[test]
    fn a_stranger_with_the_same_number_is_not_touched() {
        let directory = tempfile::tempdir().unwrap();
        let process = sleeper(directory.path());
        let stranger = Process { start_time: process.start_time + 1, ..process };
        stranger.stop(Duration::ZERO).unwrap();
        assert!(process.is_alive());
        process.stop(Duration::ZERO).unwrap();
    }

    #[test]
    fn a_second_process_for_the_same_file_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let process = sleeper(directory.path());
        let error =
            spawn(&Command::new("true"), &directory.path().join("log"), &directory.path().join("pid")).unwrap_err();
        assert!(error.to_string().contains("still runs"), "{error:#}");
        process.stop(Duration::ZERO).unwrap();
    }
}
