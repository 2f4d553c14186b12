//! The reaper: ends a cluster after the program that started it, whether that ended by Ctrl-C, a panic or kill -9.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::process::Process;
use crate::reexec::{self, program_path};

/// Name of its process in a cluster.
pub(crate) const NAME: &str = "reaper";

/// Interval of the checks that the owner runs.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Returns the command that starts the reaper of a cluster, whose owner is the present program.
pub(crate) fn command(cluster: &Path) -> Result<Command> {
    let owner = Process::current()?;
    let mut command = Command::new(program_path()?);
    command.arg(reexec::REAPER).arg(cluster).arg(owner.pid.to_string()).arg(owner.start_time.to_string());
    Ok(command)
}

/// Waits until the owner has ended, then calls `remove` for the cluster, and removes the directory above if there is
/// nothing else in it. The end of the cluster, and keeping it, stop the reaper before that.
pub(crate) fn run(cluster: &Path, pid: &str, start_time: &str, remove: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let number = |text: &str| text.parse::<u64>().with_context(|| format!("{text:?} is no number"));
    let owner = Process { pid: u32::try_from(number(pid)?)?, start_time: number(start_time)? };
    while owner.is_alive() {
        sleep(POLL_INTERVAL);
    }
    remove(cluster)?;
    // Usually the owner created the parent directory for this cluster and would have removed it. A directory that is
    // not empty stays.
    if let Some(above) = cluster.parent() {
        drop(fs::remove_dir(above));
    }
    Ok(())
}
