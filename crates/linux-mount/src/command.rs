//! Runs programs. Their command lines are values that can be printed; each has a deadline and is killed when its
//! caller ends.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Child;

use super::{HungTask, MountError};

/// Deadline of a killed program. One that waits for a dead disk does not end at all.
const KILL_DEADLINE: Duration = Duration::from_secs(5);

/// Directories of programs, and the only `PATH` that they get.
const SEARCH_PATH: &str = "/usr/sbin:/sbin:/usr/bin:/bin";

/// A command line, and its deadline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CommandLine {
    program: &'static str,
    args: Vec<String>,
    limit: Duration,
}

impl CommandLine {
    /// Makes the command line of a program with arguments, the last of which is a path.
    pub(crate) fn new(program: &'static str, limit: Duration, args: &[&str], path: &Path) -> Self {
        Self {
            program,
            args: args.iter().map(|&arg| arg.to_owned()).chain([path.display().to_string()]).collect(),
            limit,
        }
    }
}

impl fmt::Display for CommandLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.program)?;
        self.args.iter().try_for_each(|arg| write!(f, " {arg}"))
    }
}

/// Starts a program outside of the control group of the agent's container, whose limits are for the agent: a check of a
/// large filesystem takes more memory, and mkfs must not wait for other pods. The first argument is the file of the
/// other control group. Unlike the agent the program may be killed when the node has no memory left.
const LEAVE: &str = r#"{ echo 0 >"$1" && echo 0 >/proc/self/oom_score_adj; } 2>/dev/null; shift; exec "$@""#;
const SHELL: &str = "/bin/sh";

/// Paths of the installed programs, and where they run.
#[derive(Clone, Debug)]
pub(crate) struct Programs {
    paths: HashMap<&'static str, PathBuf>,
    /// The file `cgroup.procs` of their cgroup, unless they share that of this process.
    cgroup: Option<PathBuf>,
}

impl Programs {
    /// Resolves the path of each program once. A missing one is an error when it is run.
    pub(crate) fn find(programs: &[&'static str]) -> Self {
        let paths = programs
            .iter()
            .filter_map(|&program| {
                let found =
                    SEARCH_PATH.split(':').map(|dir| Path::new(dir).join(program)).find(|path| is_executable(path));
                if found.is_none() {
                    tracing::warn!(program, "a program is not installed; volumes that need it cannot be published");
                }
                Some((program, found?))
            })
            .collect();
        Self { paths, cgroup: None }
    }

    /// Sets the cgroup in which the programs run, by its file `cgroup.procs`. Programs of an earlier container that are
    /// still in it are killed, as they are where they share the end of their container.
    pub(crate) fn in_cgroup(self, processes: PathBuf) -> Self {
        kill_leftovers(&processes);
        Self { cgroup: Some(processes), ..self }
    }

    /// Runs a program to its end, whatever its exit status.
    pub(crate) async fn run(&self, command: &CommandLine) -> Result<Output, MountError> {
        let output = self.run_until(command, std::future::pending()).await?;
        let stopped = || MountError::Spawn { command: command.to_string(), source: io::ErrorKind::Interrupted.into() };
        output.ok_or_else(stopped)
    }

    /// Runs a program to its end, whatever its exit status, and kills it when `stop` is ready: then returns `None`.
    pub(crate) async fn run_until(
        &self,
        command: &CommandLine,
        stop: impl Future<Output = ()>,
    ) -> Result<Option<Output>, MountError> {
        let failed = |source| MountError::Spawn { command: command.to_string(), source };
        // Its own, and empty, so that no name without a slash means a file of the node. It goes when the program has
        // ended
        let directory = tempfile::tempdir().map_err(failed)?;
        let mut child = self.spawn(command, directory.path())?;
        let ended = tokio::select! {
            ended = tokio::time::timeout(command.limit, wait_for_output(&mut child)) => Some(ended),
            () = stop => None,
        };
        if let Some(Ok(output)) = ended {
            return output.map(Some).map_err(failed);
        }
        let hung_task = kill_child(child).await;
        if ended.is_none() && hung_task.is_none() {
            return Ok(None);
        }
        Err(MountError::TooSlow { command: command.to_string(), limit: command.limit, hung_task })
    }

    #[expect(clippy::disallowed_methods, reason = "this is the one place of the crate that starts processes")]
    fn spawn(&self, command: &CommandLine, directory: &Path) -> Result<Child, MountError> {
        let program = self.paths.get(command.program).ok_or(MountError::NoTool(command.program))?;
        tracing::debug!(command = %command, "starting");
        let mut process = if let Some(group) = &self.cgroup {
            let mut shell = tokio::process::Command::new(SHELL);
            shell.args(["-c", LEAVE, "sh"]).arg(group).arg(program);
            shell
        } else {
            tokio::process::Command::new(program)
        };
        let child = process
            .args(&command.args)
            .env_clear()
            .env("PATH", SEARCH_PATH)
            .env("LC_ALL", "C")
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        child.map_err(|source| MountError::Spawn { command: command.to_string(), source })
    }

    /// Runs a program; an exit status other than 0 is an error.
    pub(crate) async fn run_ok(&self, command: &CommandLine) -> Result<Output, MountError> {
        let output = self.run(command).await?;
        if output.status.success() { Ok(output) } else { Err(failed_command(command, &output)) }
    }
}

/// Kills what an agent that was killed itself has left in a control group of its programs: the device would be in use
/// until it ends.
fn kill_leftovers(processes: &Path) {
    let Ok(listed) = std::fs::read_to_string(processes) else { return };
    for pid in listed.lines().filter_map(|line| Pid::from_raw(line.parse().ok()?)) {
        let killed = rustix::process::kill_process(pid, Signal::KILL);
        tracing::warn!(
            pid = pid.as_raw_nonzero(),
            ?killed,
            "killed a program that an earlier topolvm-node left running"
        );
    }
}

/// Waits for the end of a program and reads all its output.
async fn wait_for_output(child: &mut Child) -> io::Result<Output> {
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (status, stdout, stderr) = tokio::try_join!(child.wait(), read_pipe(stdout), read_pipe(stderr))?;
    Ok(Output { status, stdout, stderr })
}

/// Reads a pipe to its end.
async fn read_pipe(pipe: Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        pipe.read_to_end(&mut bytes).await?;
    }
    Ok(bytes)
}

/// Kills a program. Returns a hung task if it does not end even then.
async fn kill_child(mut child: Child) -> Option<HungTask> {
    if let Err(error) = child.start_kill() {
        tracing::warn!(%error, "cannot kill a program that exceeded its time limit");
    }
    if tokio::time::timeout(KILL_DEADLINE, child.wait()).await.is_ok() {
        return None;
    }
    let hung_task = HungTask::default();
    let (held, runtime) = (hung_task.clone(), tokio::runtime::Handle::current());
    drop(tokio::task::spawn_blocking(move || {
        let ended = runtime.block_on(child.wait());
        tracing::debug!(?ended, "a program that could not be killed ended");
        drop(held);
    }));
    Some(hung_task)
}

/// Makes the error of a program that ended with a failure.
pub(crate) fn failed_command(command: &CommandLine, output: &Output) -> MountError {
    if output.status.signal() == Some(Signal::KILL.as_raw()) {
        return MountError::Killed { command: command.to_string() };
    }
    MountError::Failed {
        command: command.to_string(),
        status: output.status,
        stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    }
}

/// Returns whether a path is an executable file.
fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_runs_with_a_fixed_environment() {
        let programs = Programs::find(&["sh"]);
        let command =
            CommandLine::new("sh", Duration::from_secs(30), &["-c", "echo \"$LC_ALL $0\""], Path::new("/dev/x"));
        let output = programs.run_ok(&command).await.unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "C /dev/x\n");
    }

    #[tokio::test]
    async fn a_program_runs_in_an_empty_directory_of_its_own() {
        let programs = Programs::find(&["sh"]);
        for _ in 0..2 {
            let command =
                CommandLine::new("sh", Duration::from_secs(30), &["-c", "ls -A; touch left"], Path::new("/dev/x"));
            assert_eq!(String::from_utf8(programs.run_ok(&command).await.unwrap().stdout).unwrap(), "");
        }
    }

    #[tokio::test]
    async fn a_failure_carries_the_command_line_and_what_it_said() {
        let programs = Programs::find(&["sh"]);
        let command =
            CommandLine::new("sh", Duration::from_secs(30), &["-c", "echo broken >&2; exit 3"], Path::new("/dev/x"));
        let error = programs.run_ok(&command).await.unwrap_err().to_string();
        assert_eq!(error, "sh -c echo broken >&2; exit 3 /dev/x failed with exit status: 3: broken");
    }

    #[tokio::test]
    async fn program_leaves_the_control_group_of_the_container() {
        let group = tempfile::NamedTempFile::new().unwrap();
        let programs = Programs::find(&["sh"]).in_cgroup(group.path().to_owned());
        let command =
            CommandLine::new("sh", Duration::from_secs(30), &["-c", "echo \"$LC_ALL $0\""], Path::new("/a b"));
        let output = programs.run_ok(&command).await.unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "C /a b\n");
        assert_eq!(std::fs::read_to_string(group.path()).unwrap(), "0\n");
    }

    #[tokio::test]
    async fn program_runs_where_the_control_group_cannot_be_left() {
        let programs = Programs::find(&["sh"]).in_cgroup("/no/such/cgroup.procs".into());
        let command = CommandLine::new("sh", Duration::from_secs(30), &["-c", "echo ran"], Path::new("/dev/x"));
        assert_eq!(programs.run_ok(&command).await.unwrap().stdout, b"ran\n");
    }

    #[tokio::test]
    async fn program_that_the_kernel_kills_names_memory() {
        let programs = Programs::find(&["sh"]);
        let command = CommandLine::new("sh", Duration::from_secs(30), &["-c", "kill -9 $$"], Path::new("/dev/x"));
        let error = programs.run_ok(&command).await.unwrap_err().to_string();
        assert!(error.contains("memory"), "{error}");
    }

    #[tokio::test]
    #[expect(clippy::disallowed_methods, reason = "stands for what an earlier agent has left")]
    async fn programs_of_an_earlier_agent_are_killed() {
        let mut leftover = tokio::process::Command::new("sleep").arg("1000").kill_on_drop(true).spawn().unwrap();
        let group = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(group.path(), format!("{}\n", leftover.id().unwrap())).unwrap();
        kill_leftovers(group.path());
        assert_eq!(leftover.wait().await.unwrap().signal(), Some(9));
    }

    #[tokio::test]
    async fn a_program_that_hangs_is_killed() {
        let programs = Programs::find(&["sleep"]);
        let command = CommandLine::new("sleep", Duration::from_millis(20), &[], Path::new("1000"));
        assert!(matches!(programs.run(&command).await, Err(MountError::TooSlow { .. })));
    }

    #[tokio::test]
    async fn program_is_killed_when_its_output_is_not_needed_any_more() {
        let programs = Programs::find(&["sleep"]);
        let command = CommandLine::new("sleep", Duration::from_mins(1), &[], Path::new("1000"));
        let stop = tokio::time::sleep(Duration::from_millis(20));
        assert_eq!(programs.run_until(&command, stop).await.unwrap().map(|output| output.status), None);
    }

    #[tokio::test]
    async fn a_program_that_is_not_installed_is_named() {
        let programs = Programs::find(&["mkfs.nothing"]);
        let command = CommandLine::new("mkfs.nothing", Duration::from_secs(1), &[], Path::new("/dev/x"));
        let error = programs.run(&command).await.unwrap_err().to_string();
        assert_eq!(error, "program mkfs.nothing is not installed; install it in the image or on the node");
    }
}
