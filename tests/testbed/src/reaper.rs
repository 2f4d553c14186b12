//! Ends a cluster when the program that started it has ended, however that came about: Ctrl-C, a panic, kill -9.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::cluster;
use crate::process::Process;
use crate::program;

/// The name of its process in a cluster.
pub(crate) const NAME: &str = "reaper";

const LOOK_AGAIN: Duration = Duration::from_millis(200);

/// The command that watches this program for a cluster.
pub(crate) fn command(cluster: &Path) -> Result<Command> {
    let owner = Process::current()?;
    let mut command = Command::new(program::path()?);
    command.arg(program::REAPER).arg(cluster).arg(owner.pid.to_string()).arg(owner.start_time.to_string());
    Ok(command)
}

/// Waits for the owner's end, then removes the cluster, and the directory above if there is nothing else in it.
/// [`cluster::Cluster::down`] and [`cluster::Cluster::keep`] end it before that.
pub(crate) fn run(cluster: &Path, pid: &str, start_time: &str) -> Result<()> {
    let number = |text: &str| text.parse::<u64>().with_context(|| format!("{text:?} is no number"));
    let owner = Process { pid: u32::try_from(number(pid)?)?, start_time: number(start_time)? };
    while owner.is_alive() {
        sleep(LOOK_AGAIN);
    }
    cluster::remove(cluster)?;
    // Mostly the owner made the directory above for this cluster and would have removed it. One with something in it
    // stays.
    if let Some(above) = cluster.parent() {
        drop(fs::remove_dir(above));
    }
    Ok(())
}
