//! Runs commands that take long, with messages about their progress.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::interrupt;

/// Interval of the checks that the command has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Interval of the messages.
const MESSAGE_INTERVAL: Duration = Duration::from_secs(30);

/// Runs a command, prints its purpose at the start and every half minute, and its duration. A failure includes the end
/// of the command's output.
pub(super) fn run(what: &str, command: &mut Command) -> Result<()> {
    interrupt::watch()?;
    let begin = Instant::now();
    say(&format!("testbed: {what}"))?;
    let mut output = tempfile::tempfile().context("create a file for the output")?;
    let program = command.get_program().display().to_string();
    let share = |file: &File| file.try_clone().map(Stdio::from).context("share the output file");
    let mut child = command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(share(&output)?)
        .stderr(share(&output)?)
        .spawn()
        .with_context(|| format!("start {program}"))?;
    let status = wait(&mut child, what, begin)?;
    if !status.success() {
        let mut text = Vec::new();
        output.rewind().and_then(|()| output.read_to_end(&mut text)).context("read the output")?;
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let last = lines.get(lines.len().saturating_sub(30)..).unwrap_or_default();
        bail!("{what}: {program} failed with {status}:\n{}", last.join("\n"));
    }
    say(&format!("testbed: done after {:.0?}", begin.elapsed()))
}

/// Waits until the command has ended, and kills it when this program is interrupted.
fn wait(child: &mut Child, what: &str, begin: Instant) -> Result<ExitStatus> {
    let mut said = begin;
    loop {
        if let Some(status) = child.try_wait().context("wait for the command")? {
            return Ok(status);
        }
        if interrupt::is_requested() {
            // With all its children. The process group still exists: the command has not been reaped.
            if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                kill_process_group(group, Signal::KILL).ok();
            }
            child.wait().context("wait for the command")?;
            bail!("interrupted while {what}");
        }
        if said.elapsed() >= MESSAGE_INTERVAL {
            said = Instant::now();
            say(&format!("testbed: still {what} ({} s)", begin.elapsed().as_secs()))?;
        }
        sleep(POLL_INTERVAL);
    }
}

fn say(line: &str) -> Result<()> {
    writeln!(io::stderr(), "{line}").context("write to stderr")
}
