//! The runner that starts real LVM processes.

use std::env;
use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::{CommandRunner, Effect, LvmCommand, Output, RunError};

/// The environment of LVM, and nothing else: what LVM does must not depend on who started us. `LC_ALL` keeps the messages
/// English, which [`Error`](crate::Error) relies on.
const ENVIRONMENT: &[(&str, &str)] = &[("LC_ALL", "C"), ("PATH", SEARCH_PATH), ("LVM_SUPPRESS_FD_WARNINGS", "1")];
/// Where programs are looked for that are given without a directory.
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Reports take milliseconds; this much only passes when devices hang.
const READ_DEADLINE: Duration = Duration::from_mins(1);
/// Changes may discard or wipe whole devices.
const CHANGE_DEADLINE: Duration = Duration::from_mins(10);
/// LVM ends at a safe point on SIGTERM. Only what ignores it that long is killed.
const GRACE: Duration = Duration::from_secs(10);

/// A prefix that cannot start anything.
#[derive(Debug, thiserror::Error)]
pub enum PrefixError {
    /// There is no word in it.
    #[error("lvm-command-prefix is empty; leave it out for the default, or end it with the path of the lvm program")]
    Empty,
    /// Its first word is in none of the usual directories.
    #[error("no program {0:?} in {SEARCH_PATH}; write its whole path")]
    NotFound(String),
}

/// Starts LVM as a child process for each command.
///
/// Standard input is empty, so LVM never waits for an answer. Each command runs in its own process group, so a signal at
/// the terminal does not reach it, and one that is stopped takes along the `lvm` that `nsenter` started for it.
#[derive(Clone, Debug)]
pub struct SystemRunner {
    program: PathBuf,
    prefix: Vec<String>,
    read_deadline: Duration,
    change_deadline: Duration,
    grace: Duration,
}

impl SystemRunner {
    /// What stands before the LVM sub-command unless configured otherwise: the `lvm` of the host, in the host's namespaces,
    /// also when called from a container (with hostPID). On the host itself `nsenter` changes nothing.
    pub const DEFAULT_PREFIX: &[&str] = &["/usr/bin/nsenter", "-m", "-u", "-i", "-n", "-p", "-t", "1", "/sbin/lvm"];

    /// A runner with this prefix, which ends with the `lvm` program. The first word is looked up once, now.
    pub fn new<S: AsRef<str>>(prefix: &[S]) -> Result<Self, PrefixError> {
        let mut words = prefix.iter().map(|word| word.as_ref().to_owned());
        let program = words.next().filter(|program| !program.is_empty()).ok_or(PrefixError::Empty)?;
        Ok(Self {
            program: resolve(&program).ok_or(PrefixError::NotFound(program))?,
            prefix: words.collect(),
            read_deadline: READ_DEADLINE,
            change_deadline: CHANGE_DEADLINE,
            grace: GRACE,
        })
    }

    /// The same runner with other deadlines for commands that read and commands that change.
    #[must_use]
    pub fn with_deadlines(self, read: Duration, change: Duration) -> Self {
        Self { read_deadline: read, change_deadline: change, ..self }
    }

    #[expect(clippy::disallowed_methods, reason = "this is the CommandRunner that everybody else is told to use")]
    fn spawn(&self, command: &LvmCommand) -> io::Result<Child> {
        Command::new(&self.program)
            .args(&self.prefix)
            .args(command.args())
            .env_clear()
            .envs(ENVIRONMENT.iter().copied())
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    }
}

impl CommandRunner for SystemRunner {
    async fn run(&self, command: &LvmCommand) -> Result<Output, RunError> {
        let child = self
            .spawn(command)
            .map_err(|source| RunError::Spawn { program: self.program.display().to_string(), source })?;
        match command.effect() {
            Effect::Read => {
                let group = Group::of(&child, true);
                end_of(child, group, self.read_deadline, self.grace).await
            }
            Effect::Change => {
                let group = Group::of(&child, false);
                let ending = end_of(child, group, self.change_deadline, self.grace);
                #[expect(clippy::disallowed_methods, reason = "somebody must read on when our caller goes away")]
                let ending = tokio::spawn(ending);
                ending.await.unwrap_or_else(|error| Err(RunError::Read(io::Error::other(error))))
            }
        }
    }
}

/// Waits for the end, or brings it about at the deadline. Reads both pipes at the same time: LVM would wait for ever on one
/// that is full, and be killed by writing to one that is closed.
async fn end_of(child: Child, mut group: Group, deadline: Duration, grace: Duration) -> Result<Output, RunError> {
    let ending = child.wait_with_output();
    tokio::pin!(ending);
    let ended = timeout(deadline, &mut ending).await;
    if ended.is_err() {
        group.signal(Signal::TERM);
        if timeout(grace, &mut ending).await.is_err() {
            // A process that waits for a dead disk does not even end now, so nobody waits for it.
            group.signal(Signal::KILL);
        }
    }
    group.kill_on_drop = false;
    let ended = ended.map_err(|_| RunError::Timeout(deadline))?.map_err(RunError::Read)?;
    Ok(Output {
        code: ended.status.code(),
        stdout: ended.stdout,
        stderr: String::from_utf8_lossy(&ended.stderr).into_owned(),
    })
}

/// The processes of one command.
struct Group {
    leader: Option<Pid>,
    kill_on_drop: bool,
}

impl Group {
    fn of(child: &Child, kill_on_drop: bool) -> Self {
        let leader = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        Self { leader, kill_on_drop }
    }

    /// While our end of the pipes is being read the group exists or has just ended, so the number is not somebody else's.
    fn signal(&self, signal: Signal) {
        if let Some(leader) = self.leader {
            // Fails only when all of them have ended.
            let _ = kill_process_group(leader, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if self.kill_on_drop {
            self.signal(Signal::KILL);
        }
    }
}

fn resolve(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program));
    }
    env::split_paths(OsStr::new(SEARCH_PATH))
        .map(|directory| directory.join(Path::new(program)))
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::Instant;

    use tempfile::TempDir;

    use super::*;

    /// A runner whose "lvm" is this shell script.
    fn script(dir: &TempDir, body: &str) -> SystemRunner {
        let path = dir.path().join("lvm");
        fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        SystemRunner::new(&[path.to_str().unwrap()]).unwrap()
    }

    fn read() -> LvmCommand {
        LvmCommand::report([])
    }

    fn change() -> LvmCommand {
        LvmCommand::remove(&"vg".parse().unwrap(), &"lv".parse().unwrap())
    }

    #[tokio::test]
    async fn status_and_both_outputs_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let runner = script(&dir, r#"echo "got $*"; echo oops >&2; exit 5"#);
        let output = runner.run(&change()).await.unwrap();
        assert_eq!(
            output,
            Output { code: Some(5), stdout: b"got lvremove -f vg/lv\n".into(), stderr: "oops\n".to_owned() }
        );
    }

    #[tokio::test]
    async fn the_prefix_comes_first() {
        let runner = SystemRunner::new(&["echo", "-m", "/sbin/lvm"]).unwrap();
        assert_eq!(runner.run(&change()).await.unwrap().stdout, b"-m /sbin/lvm lvremove -f vg/lv\n");
    }

    #[tokio::test]
    async fn the_environment_is_fixed_and_there_is_no_input() {
        let dir = tempfile::tempdir().unwrap();
        let runner = script(&dir, "/usr/bin/env | grep -v -e ^_= -e ^PWD= -e ^SHLVL= | sort; pwd; cat");
        let output = runner.run(&read()).await.unwrap();
        let expected = format!("LC_ALL=C\nLVM_SUPPRESS_FD_WARNINGS=1\nPATH={SEARCH_PATH}\n/\n");
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    }

    #[tokio::test]
    async fn megabytes_on_both_pipes_do_not_block() {
        let dir = tempfile::tempdir().unwrap();
        let runner =
            script(&dir, "head -c 1000000 /dev/zero >&2; head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2");
        let output = runner.run(&read()).await.unwrap();
        assert_eq!((output.stdout.len(), output.stderr.len()), (1_000_000, 2_000_000));
    }

    #[tokio::test]
    async fn what_hangs_is_stopped_at_its_deadline_with_its_children() {
        let dir = tempfile::tempdir().unwrap();
        let pid = dir.path().join("pid");
        // Like nsenter, the child goes on when only its parent gets the signal.
        let runner =
            script(&dir, &format!("sh -c 'echo $$ >{0}.new; mv {0}.new {0}; exec sleep 1000' & wait", pid.display()))
                .with_deadlines(Duration::from_millis(500), Duration::from_millis(500));
        let start = Instant::now();
        let error = runner.run(&change()).await.unwrap_err();
        assert!(matches!(error, RunError::Timeout(_)), "{error}");
        assert!(start.elapsed() < GRACE);
        let pid = fs::read_to_string(&pid).unwrap();
        // It is gone, or a zombie for as long as nobody collects it.
        let state = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        assert!(state.is_empty() || state.contains(") Z "), "{state}");
    }

    #[tokio::test]
    async fn a_change_goes_on_after_its_caller_has_gone_and_a_read_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let (started, go, done) = (dir.path().join("started"), dir.path().join("go"), dir.path().join("done"));
        for path in [&started, &go, &done] {
            rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        }
        let body = format!(
            "echo >{}; read line <{}; echo out; echo err >&2; echo $1 >{}",
            started.display(),
            go.display(),
            done.display()
        );
        let runner = script(&dir, &body);
        for command in [read(), change()] {
            let mut running = Box::pin(runner.run(&command));
            tokio::select! {
                _ = &mut running => panic!("it waits for us"),
                _ = tokio::fs::read(&started) => {}
            }
            drop(running);
        }
        // Opening the pipe for writing waits for its reader: the change, the only one left.
        tokio::fs::write(&go, "\n").await.unwrap();
        let text = tokio::fs::read_to_string(&done).await.unwrap();
        assert_eq!(text, "lvremove\n");
    }

    #[tokio::test]
    async fn a_program_that_is_missing_is_named() {
        let runner = SystemRunner::new(&["/nonexistent/lvm"]).unwrap();
        let error = runner.run(&read()).await.unwrap_err();
        assert!(error.to_string().starts_with("cannot start /nonexistent/lvm"), "{error}");
    }

    #[test]
    fn a_prefix_without_a_program_is_refused() {
        assert!(matches!(SystemRunner::new::<&str>(&[]), Err(PrefixError::Empty)));
        assert!(matches!(SystemRunner::new(&[""]), Err(PrefixError::Empty)));
        assert!(matches!(SystemRunner::new(&["no-such-program-anywhere"]), Err(PrefixError::NotFound(_))));
    }
}
