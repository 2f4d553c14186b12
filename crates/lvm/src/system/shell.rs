//! LVM's own shells, which stay for a moment: most of the time of a short command is LVM's start.
//!
//! Even with cheap processes it saves half of the CPU time of a change without activation, and a third of its time
//! (docs/benchmarks.md, "LVM's kept shell"): it stays as long as that is more than 15 % of a change.
//!
//! An idle shell holds no lock and no device, only some megabytes. It scans the disks and reads `lvm.conf` before each
//! command as a new process would, and ends at the end of its standard input, so that none outlives the process that
//! started it.

use std::io;
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::io::Errno;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use tokio::time::timeout;

use super::ProcessGroup;
use crate::{Effect, Output, RunError};

/// After so many times a shell is replaced, whatever it may have gathered.
const USES: u32 = 1000;
/// A line that no shell knows. It names what it does not know on standard error, by which the end of its work is
/// noticed.
const END_MARKER: &str = "end-of-commands-";
/// First lines for a new shell: print one line about nothing, and then the report format of this shell, which
/// `lvm.conf` sets and no command can change.
const HANDSHAKE: &str = "formats\nlvmconfig --type full report/output_format log/report_command_log\n";
/// The end of a prompt. No newline follows, and LVM waits.
const QUESTION: &[u8] = b"[y/n]: ";
const CHUNK: usize = 16 << 10;

/// The shells that have nothing to do.
#[derive(Debug)]
pub(super) struct IdleShells {
    /// Timeout after which an idle shell ends.
    idle_timeout: Duration,
    idle: Mutex<Vec<(Instant, Shell)>>,
}

/// Timeouts of a shell.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timeouts {
    /// For its commands.
    pub(super) deadline: Duration,
    /// To print its first line.
    pub(super) handshake: Duration,
    /// To end after the request to end.
    pub(super) grace: Duration,
}

/// Outcome of commands for a shell.
#[derive(Debug)]
pub(super) enum ShellResult {
    /// They ran, or the program ended before.
    Done(Output),
    /// Nothing ran.
    UnusableShell(UnusableShell),
}

/// Reason for which a shell cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum UnusableShell {
    /// There is none.
    #[error("this lvm program has no usable shell")]
    Missing,
    /// It printed nothing in time. The next one may.
    #[error("the shell did not answer in time")]
    Slow,
    /// Its reports would be in a form that is not understood here.
    #[error(
        "lvm.conf sets report/output_format or log/report_command_log, which cannot be overridden in the LVM shell"
    )]
    OtherReportFormat,
}

impl IdleShells {
    /// Returns no shells yet, with the timeout for those to come.
    pub(super) fn new(idle_timeout: Duration) -> Arc<Self> {
        Arc::new(Self { idle_timeout, idle: Mutex::default() })
    }

    /// Runs lines in a shell that waits, or in one that `start` starts. It is kept afterwards if nothing is wrong with
    /// it.
    pub(super) async fn run(
        self: &Arc<Self>,
        lines: &str,
        effect: Effect,
        timeouts: Timeouts,
        start: impl FnOnce() -> Result<Child, RunError>,
    ) -> Result<ShellResult, RunError> {
        let (mut shell, processes) = match self.take() {
            Some(shell) => (shell, 0),
            None => match Shell::start_shell(start()?, timeouts).await? {
                Ok(shell) => (shell, 1),
                Err(result) => return Ok(result),
            },
        };
        shell.group.kill_on_drop = effect == Effect::Read;
        let output = shell.run(lines, timeouts).await?;
        shell.group.kill_on_drop = false;
        if shell.can_go_on() {
            self.put(shell);
        }
        Ok(ShellResult::Done(Output { processes, ..output }))
    }

    fn take(&self) -> Option<Shell> {
        let mut idle = self.idle.lock();
        std::iter::from_fn(|| idle.pop()).map(|(_, shell)| shell).find_map(Shell::if_alive)
    }

    fn put(self: &Arc<Self>, shell: Shell) {
        self.idle.lock().push((Instant::now(), shell));
        let (idle_timeout, shells) = (self.idle_timeout, Arc::downgrade(self));
        #[expect(clippy::disallowed_methods, reason = "it ends by itself in a moment, and nothing depends on it")]
        let _ended_later = tokio::spawn(async move {
            tokio::time::sleep(idle_timeout).await;
            if let Some(shells) = shells.upgrade() {
                let mut idle = shells.idle.lock();
                idle.retain(|(since, _)| since.elapsed() < idle_timeout);
            }
        });
    }
}

/// A running shell. Its standard input closes when this is dropped, and it ends.
#[derive(Debug)]
struct Shell {
    child: Child,
    group: ProcessGroup,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    stderr: ChildStderr,
    uses: u32,
}

impl Shell {
    /// Talks to a program that was started without a command. Returns the result of the commands if it is no shell that
    /// can run them. The exit status 3, `EINVALID_CMD_LINE`, is that of an
    /// `lvm` without a shell.
    async fn start_shell(mut child: Child, timeouts: Timeouts) -> Result<Result<Self, ShellResult>, RunError> {
        let unusable = |why| Ok(Err(ShellResult::UnusableShell(why)));
        let group = ProcessGroup::of(&child, true);
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (stdin @ Some(_), Some(stdout), Some(stderr)) = pipes else {
            return unusable(UnusableShell::Missing);
        };
        let mut shell = Self { child, group, stdin, stdout, stderr, uses: 0 };
        let timeouts = Timeouts { deadline: timeouts.handshake.min(timeouts.deadline), ..timeouts };
        let output = match shell.run(HANDSHAKE, timeouts).await {
            Err(RunError::Timeout(_)) => return unusable(UnusableShell::Slow),
            output => output?,
        };
        shell.group.kill_on_drop = false;
        match (shell.stdin.is_some(), output.code) {
            // The line must have come before the end was noticed: were output held back, that of one change would be
            // taken for that of the next
            (true, _) if output.stdout.is_empty() => unusable(UnusableShell::Missing),
            (true, _) if writes_other_report_format(&output.stdout) => unusable(UnusableShell::OtherReportFormat),
            (true, _) => Ok(Ok(shell)),
            (false, Some(3)) => unusable(UnusableShell::Missing),
            (false, _) => Ok(Err(ShellResult::Done(Output { processes: 1, ..output }))),
        }
    }

    /// Runs lines. The status is that of the program if it has ended, else 0. Reads both pipes at the same time: LVM
    /// would block on a full one.
    async fn run(&mut self, lines: &str, timeouts: Timeouts) -> Result<Output, RunError> {
        self.uses = self.uses.saturating_add(1);
        let end = format!("{END_MARKER}{}", self.uses);
        let Some(mut stdin) = self.stdin.take() else { return Ok(Output::default()) };
        let script = format!("{lines}{end}\n");
        let mut output = ShellOutput::new(end);
        let talking = async {
            // Fails if LVM has ended before it read everything; its output shows the commands that ran
            let written = stdin.write_all(script.as_bytes());
            let (_written, stopped) = tokio::join!(written, output.read(&mut self.stdout, &mut self.stderr));
            stopped
        };
        let stopped = timeout(timeouts.deadline, talking).await;
        let status = match stopped {
            Ok(Ok(Stopped::AtEnd)) => {
                self.stdin = Some(stdin);
                None
            }
            // The end of its input answers the prompt with no
            Ok(Ok(Stopped::AtQuestion)) => {
                drop(stdin);
                Some(self.end(&mut output, timeouts).await?)
            }
            Ok(Ok(Stopped::Ended)) => Some(self.end(&mut output, timeouts).await?),
            Ok(Err(error)) => return Err(RunError::Read(error)),
            Err(_elapsed) => {
                drop(stdin);
                self.group.stop(output.read_all(&mut self.stdout, &mut self.stderr), timeouts.grace).await;
                return Err(RunError::Timeout(timeouts.deadline));
            }
        };
        Ok(output.into_output(status))
    }

    /// Waits for the end of a program whose input is closed, or that has closed its outputs.
    async fn end(&mut self, output: &mut ShellOutput, timeouts: Timeouts) -> Result<ExitStatus, RunError> {
        let ending = async {
            output.read_all(&mut self.stdout, &mut self.stderr).await?;
            self.child.wait().await
        };
        tokio::pin!(ending);
        match timeout(timeouts.deadline, &mut ending).await {
            Ok(status) => status.map_err(RunError::Read),
            Err(_elapsed) => {
                self.group.stop(&mut ending, timeouts.grace).await;
                Err(RunError::Timeout(timeouts.deadline))
            }
        }
    }

    fn can_go_on(&self) -> bool {
        self.stdin.is_some() && self.uses < USES
    }

    fn if_alive(mut self) -> Option<Self> {
        matches!(self.child.try_wait(), Ok(None)).then_some(self)
    }
}

/// Reason for which nothing more is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stopped {
    /// All lines have been done.
    AtEnd,
    /// It wants to know something.
    AtQuestion,
    /// It has closed both outputs.
    Ended,
}

/// Output of a shell since it was given lines.
struct ShellOutput {
    end: String,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl ShellOutput {
    fn new(end: String) -> Self {
        Self { end, stdout: Vec::new(), stderr: Vec::new() }
    }

    /// Reads until there is nothing more to be expected.
    async fn read(&mut self, stdout: &mut ChildStdout, stderr: &mut ChildStderr) -> io::Result<Stopped> {
        let (mut out, mut err) = (vec![0; CHUNK], vec![0; CHUNK]);
        let (mut out_open, mut err_open) = (true, true);
        while out_open || err_open {
            tokio::select! {
                read = stdout.read(&mut out), if out_open => {
                    let read = read?;
                    out_open = read > 0;
                    self.stdout.extend(out.iter().take(read));
                }
                read = stderr.read(&mut err), if err_open => {
                    let read = read?;
                    err_open = read > 0;
                    self.stderr.extend(err.iter().take(read));
                    if self.remove_end_marker() {
                        // ShellOutput before, and so in the pipe by now
                        drain(stdout, &mut self.stdout)?;
                        return Ok(Stopped::AtEnd);
                    }
                    if self.stderr.ends_with(QUESTION) {
                        return Ok(Stopped::AtQuestion);
                    }
                }
            }
        }
        Ok(Stopped::Ended)
    }

    async fn read_all(&mut self, stdout: &mut ChildStdout, stderr: &mut ChildStderr) -> io::Result<()> {
        let (out, err) = tokio::join!(stdout.read_to_end(&mut self.stdout), stderr.read_to_end(&mut self.stderr));
        out.and(err).map(drop)
    }

    /// Removes the line about the end, if it has come.
    fn remove_end_marker(&mut self) -> bool {
        let mut lines = self.stderr.split_inclusive(|byte| *byte == b'\n');
        let is_end = |line: &&[u8]| {
            // Not `end-of-commands-11` for `end-of-commands-1`
            let text = String::from_utf8_lossy(line);
            let mut after = text.match_indices(&self.end).filter_map(|(at, end)| text.get(at + end.len()..));
            line.ends_with(b"\n") && after.any(|after| !after.starts_with(|next: char| next.is_ascii_digit()))
        };
        let Some(last) = lines.next_back().filter(is_end) else { return false };
        self.stderr.truncate(self.stderr.len().saturating_sub(last.len()));
        true
    }

    fn into_output(self, status: Option<ExitStatus>) -> Output {
        Output {
            code: status.map_or(Some(0), |status| status.code()),
            stdout: self.stdout,
            stderr: String::from_utf8_lossy(&self.stderr).into_owned(),
            processes: 0,
        }
    }
}

/// Returns whether a shell with these settings writes its reports in another form than `--nameprefixes` alone produces.
fn writes_other_report_format(output: &[u8]) -> bool {
    let output = String::from_utf8_lossy(output);
    let mut settings = output.lines().filter_map(|line| line.trim().split_once('='));
    settings.any(|(name, value)| match name {
        "output_format" => value != "\"basic\"",
        "report_command_log" => value != "0",
        _ => false,
    })
}

/// Takes what is in a pipe. Not by way of tokio, which may not have heard of it yet.
fn drain(pipe: &ChildStdout, into: &mut Vec<u8>) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK];
    loop {
        match rustix::io::read(pipe, chunk.as_mut_slice()) {
            Ok(0) | Err(Errno::AGAIN) => return Ok(()),
            Ok(read) => into.extend(chunk.iter().take(read)),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests;
