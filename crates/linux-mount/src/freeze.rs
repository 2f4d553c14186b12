//! Frozen filesystems (fsfreeze(8)): finds out whether the program that changes one waits for a thaw.

use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::mount::{FsPickFlags, fsconfig_reconfigure, fspick};

use super::blocking::{FILE_DEADLINE, run_blocking};
use super::command::{CommandLine, Programs, failed_command};
use super::{HungTask, MountError};

/// Time after which a program that has not ended may be waiting for a thaw.
const PATIENCE: Duration = Duration::from_secs(10);

/// Runs a program that changes the filesystem mounted at a path; [`MountError::Frozen`] if the filesystem is frozen.
/// No signal ends the program then: the kernel lets it go on when the filesystem is thawed.
pub(crate) async fn run_unless_frozen(
    programs: &Programs,
    command: &CommandLine,
    target: &Path,
) -> Result<(), MountError> {
    let mut found = false;
    let waits = async {
        wait_until_found_frozen(target).await;
        found = true;
    };
    let ended = programs.run_until(command, waits).await;
    let frozen = |waiting: Option<HungTask>| MountError::Frozen { path: target.to_owned(), waiting };
    match ended {
        Ok(Some(output)) if output.status.success() => Ok(()),
        Ok(Some(output)) => Err(failed_command(command, &output)),
        Ok(None) => Err(frozen(None)),
        Err(MountError::TooSlow { hung_task, .. }) if found => Err(frozen(hung_task)),
        Err(error) => Err(error),
    }
}

/// Inspects the filesystem now and then, and returns when it is frozen.
async fn wait_until_found_frozen(target: &Path) {
    loop {
        tokio::time::sleep(PATIENCE).await;
        match run_blocking(FILE_DEADLINE, target, is_frozen).await {
            Ok(true) => return,
            Ok(false) => {}
            Err(error) => tracing::debug!(%error, "cannot determine whether a filesystem is frozen"),
        }
    }
}

/// Returns whether the filesystem that is mounted at a path is frozen. The kernel has no call for the question, but
/// refuses to reconfigure a frozen filesystem before it does anything else; with no option given, one that is not
/// frozen keeps its options. Only asked of a filesystem that seems to be frozen: xfs takes `inode64` for an option
/// that is always given.
fn is_frozen(target: &Path) -> Result<bool, MountError> {
    let picked = fspick(rustix::fs::CWD, target, FsPickFlags::FSPICK_CLOEXEC);
    let reconfigured = picked.and_then(|context| fsconfig_reconfigure(context.as_fd()));
    match reconfigured {
        Ok(()) => Ok(false),
        Err(Errno::BUSY) => Ok(true),
        Err(error) => Err(MountError::io("reconfigure the filesystem at", target, io::Error::from(error))),
    }
}
