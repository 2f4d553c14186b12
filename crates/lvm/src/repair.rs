//! The tools for repairs after LVM was killed: LVM's own lock, so that no LVM process is in the middle of a change, and
//! programs such as `dmsetup`.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::{Devices as _, Error, GroupLock, Host, Lvm, Output, RunError, VgName};

/// Timeout for LVM's lock of the group.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// Reason for which what a killed LVM has left was not repaired, or not all of it.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// LVM's lock of the group cannot be had, so LVM may be about to use the device.
    #[error("cannot acquire the LVM lock of the volume group")]
    Lock(#[source] io::Error),
    /// Device-mapper gave no answer.
    #[error("cannot list device-mapper devices")]
    Devices(#[source] io::Error),
    /// LVM gave no answer.
    #[error(transparent)]
    Lvm(#[from] Error),
    /// `dmsetup` or `thin_ls` (thin-provisioning-tools) cannot be run.
    #[error(transparent)]
    Run(#[from] RunError),
    /// One of them failed.
    #[error("{program} failed: {stderr}")]
    Program {
        /// Its name.
        program: &'static str,
        /// Its standard error.
        stderr: String,
    },
    /// LVM and the kernel disagree about more than is known how to repair.
    #[error("{0}")]
    Inconsistent(String),
}

impl<R: Host> Lvm<R> {
    /// Acquires LVM's lock of the group.
    pub(crate) async fn hold_group_lock(&self, vg: &VgName) -> Result<GroupLock, RepairError> {
        let directory = self.setting("global/locking_dir", |value| Some(PathBuf::from(value))).await?;
        let (devices, group) = (self.runner().devices(), vg.clone());
        let locking = tokio::task::spawn_blocking(move || devices.lock_group(&directory, &group, LOCK_TIMEOUT));
        locking.await.map_err(io::Error::other).flatten().map_err(RepairError::Lock)
    }

    /// Runs a program to its end and returns its output.
    pub(crate) async fn program(&self, program: &'static str, args: &[&str]) -> Result<String, RepairError> {
        let args: Vec<_> = args.iter().map(|&arg| arg.to_owned()).collect();
        let Output { code, stdout, stderr, .. } = self.runner().run_program(program, &args).await?;
        tracing::debug!(program, ?args, ?code, stderr, "ran");
        let printed = String::from_utf8_lossy(&stdout).trim().to_owned();
        if code == Some(0) {
            Ok(printed)
        } else {
            Err(RepairError::Program { program, stderr: stderr.trim().to_owned() })
        }
    }
}
