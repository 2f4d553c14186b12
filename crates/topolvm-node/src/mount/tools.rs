//! Starts programs. Their command lines are values that can be printed; each has a deadline and dies with the one who waits
//! for it.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::process::Child;

use super::{Error, Stuck};

/// How long a killed program may take to end. One that waits for a dead disk does not end at all.
const DYING: Duration = Duration::from_secs(5);

/// Where programs are looked for, and all that they see as `PATH`.
const SEARCH_PATH: &str = "/usr/sbin:/sbin:/usr/bin:/bin";

/// One command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tool {
    program: &'static str,
    args: Vec<String>,
    limit: Duration,
}

impl Tool {
    /// A program with arguments and the time that it may take.
    pub(super) fn new(program: &'static str, limit: Duration, args: &[&str], path: &Path) -> Self {
        Self {
            program,
            args: args.iter().map(|&arg| arg.to_owned()).chain([path.display().to_string()]).collect(),
            limit,
        }
    }
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.program)?;
        self.args.iter().try_for_each(|arg| write!(f, " {arg}"))
    }
}

/// The programs that this machine has.
#[derive(Clone, Debug)]
pub(super) struct Tools {
    paths: HashMap<&'static str, PathBuf>,
}

impl Tools {
    /// Looks each program up once; one that is missing is noticed when it is needed.
    pub(super) fn find(programs: &[&'static str]) -> Self {
        let paths = programs
            .iter()
            .filter_map(|&program| {
                let found =
                    SEARCH_PATH.split(':').map(|dir| Path::new(dir).join(program)).find(|path| is_executable(path));
                if found.is_none() {
                    tracing::warn!(program, "program is not installed; volumes that need it cannot be published");
                }
                Some((program, found?))
            })
            .collect();
        Self { paths }
    }

    /// Runs a program to its end, whatever its exit status.
    #[expect(clippy::disallowed_methods, reason = "this is the mount module's one place that starts processes")]
    pub(super) async fn run(&self, tool: &Tool) -> Result<Output, Error> {
        let program = self.paths.get(tool.program).ok_or(Error::NoTool(tool.program))?;
        let failed = |source| Error::Spawn { command: tool.to_string(), source };
        // Its own, and empty, so that no name without a slash means a file of the node. It goes when the program has ended
        let directory = tempfile::tempdir().map_err(failed)?;
        tracing::debug!(command = %tool, "starting");
        let child = tokio::process::Command::new(program)
            .args(&tool.args)
            .env_clear()
            .env("PATH", SEARCH_PATH)
            .env("LC_ALL", "C")
            .current_dir(directory.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn();
        let mut child = child.map_err(failed)?;
        if let Ok(output) = tokio::time::timeout(tool.limit, end(&mut child)).await {
            return output.map_err(failed);
        }
        let stuck = kill(child).await;
        Err(Error::TooSlow { command: tool.to_string(), limit: tool.limit, stuck })
    }

    /// Runs a program that must succeed.
    pub(super) async fn run_ok(&self, tool: &Tool) -> Result<Output, Error> {
        let output = self.run(tool).await?;
        if output.status.success() { Ok(output) } else { Err(failure(tool, &output)) }
    }
}

/// Waits for the end of a program and takes all that it says.
async fn end(child: &mut Child) -> io::Result<Output> {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
    let read_out = async {
        match &mut out {
            Some(pipe) => pipe.read_to_end(&mut stdout).await,
            None => Ok(0),
        }
    };
    let read_err = async {
        match &mut err {
            Some(pipe) => pipe.read_to_end(&mut stderr).await,
            None => Ok(0),
        }
    };
    let (status, _, _) = tokio::try_join!(child.wait(), read_out, read_err)?;
    Ok(Output { status, stdout, stderr })
}

/// Kills a program. Returns what still waits where even that takes too long.
async fn kill(mut child: Child) -> Option<Stuck> {
    if let Err(error) = child.start_kill() {
        tracing::warn!(%error, "cannot kill a program that takes too long");
    }
    if tokio::time::timeout(DYING, child.wait()).await.is_ok() {
        return None;
    }
    let stuck = Stuck::default();
    let (held, runtime) = (stuck.clone(), tokio::runtime::Handle::current());
    drop(tokio::task::spawn_blocking(move || {
        let ended = runtime.block_on(child.wait());
        tracing::debug!(?ended, "a program that could not be killed has ended");
        drop(held);
    }));
    Some(stuck)
}

/// The error for a program that failed.
pub(super) fn failure(tool: &Tool, output: &Output) -> Error {
    Error::Failed {
        command: tool.to_string(),
        status: output.status,
        stderr: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    }
}

fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_runs_with_a_fixed_environment() {
        let tools = Tools::find(&["sh"]);
        let tool = Tool::new("sh", Duration::from_secs(30), &["-c", "echo \"$LC_ALL $0\""], Path::new("/dev/x"));
        let output = tools.run_ok(&tool).await.unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "C /dev/x\n");
    }

    #[tokio::test]
    async fn a_program_runs_in_an_empty_directory_of_its_own() {
        let tools = Tools::find(&["sh"]);
        for _ in 0..2 {
            let tool = Tool::new("sh", Duration::from_secs(30), &["-c", "ls -A; touch left"], Path::new("/dev/x"));
            assert_eq!(String::from_utf8(tools.run_ok(&tool).await.unwrap().stdout).unwrap(), "");
        }
    }

    #[tokio::test]
    async fn a_failure_carries_the_command_line_and_what_it_said() {
        let tools = Tools::find(&["sh"]);
        let tool = Tool::new("sh", Duration::from_secs(30), &["-c", "echo broken >&2; exit 3"], Path::new("/dev/x"));
        let error = tools.run_ok(&tool).await.unwrap_err().to_string();
        assert_eq!(error, "sh -c echo broken >&2; exit 3 /dev/x failed with exit status: 3: broken");
    }

    #[tokio::test]
    async fn a_program_that_hangs_is_killed() {
        let tools = Tools::find(&["sleep"]);
        let tool = Tool::new("sleep", Duration::from_millis(20), &[], Path::new("1000"));
        assert!(matches!(tools.run(&tool).await, Err(Error::TooSlow { .. })));
    }

    #[tokio::test]
    async fn a_program_that_is_not_installed_is_named() {
        let tools = Tools::find(&["mkfs.nothing"]);
        let tool = Tool::new("mkfs.nothing", Duration::from_secs(1), &[], Path::new("/dev/x"));
        let error = tools.run(&tool).await.unwrap_err().to_string();
        assert_eq!(error, "program mkfs.nothing is not installed; install it in the image or on the node");
    }
}
