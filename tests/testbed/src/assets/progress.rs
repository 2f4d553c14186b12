//! Runs a command that takes long, and says so.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::interrupt;

const LOOK_AGAIN: Duration = Duration::from_millis(50);
const SAY_AGAIN: Duration = Duration::from_secs(30);

/// Says what is done, again every half minute, and how long it took. A failure carries the end of the command's output.
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
    let mut said = begin;
    let status = loop {
        if let Some(status) = child.try_wait().with_context(|| format!("wait for {program}"))? {
            break status;
        }
        if interrupt::asked_to_end() {
            // With everything that it started. The group is certainly its own: it has not been waited for.
            if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                kill_process_group(group, Signal::KILL).ok();
            }
            child.wait().with_context(|| format!("end {program}"))?;
            bail!("interrupted while {what}");
        }
        if said.elapsed() >= SAY_AGAIN {
            said = Instant::now();
            say(&format!("testbed: still {what} ({} s)", begin.elapsed().as_secs()))?;
        }
        sleep(LOOK_AGAIN);
    };
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

fn say(line: &str) -> Result<()> {
    writeln!(io::stderr(), "{line}").context("write to stderr")
}
