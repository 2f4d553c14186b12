//! Errors of mounts, devices and programs.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{DeviceNumber, DeviceUse, HungTask, MountHolder};
use crate::Filesystem;

/// Error of a mount, a device or a program.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// A system call failed.
    #[error("cannot {action} {}", .path.display())]
    Io {
        /// Action that failed.
        action: &'static str,
        /// Path of the call.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The mount table cannot be parsed.
    #[error("cannot read the mount table /proc/self/mountinfo")]
    Table(#[source] procfs::ProcError),
    /// The path is no block device.
    #[error("{} is not a block device", .0.display())]
    NotABlockDevice(PathBuf),
    /// The device node of the LV does not exist.
    #[error("device {} does not exist; activate the logical volume with lvchange --activate y", .0.display())]
    NoDevice(PathBuf),
    /// The path leads to another device than the LV's. Any operation on it would affect foreign data.
    #[error(
        "{} points to {}, but the logical volume is device {wanted}; run `vgmknodes` on the node, and check that udev \
         works there",
        .path.display(), found.map_or_else(|| "no device".to_owned(), |found| format!("device {found}"))
    )]
    WrongDevice {
        /// Path of the LV.
        path: PathBuf,
        /// Device to which the path leads.
        found: Option<DeviceNumber>,
        /// Device of the LV.
        wanted: DeviceNumber,
    },
    /// A program is not installed.
    #[error("program {0} is not installed; install it in the image or on the node")]
    NoTool(&'static str),
    /// A program cannot be started.
    #[error("cannot start {command}")]
    Spawn {
        /// Command line.
        command: String,
        /// Error of the kernel.
        source: io::Error,
    },
    /// A program ended with a failure.
    #[error("{command} failed with {status}: {stderr}")]
    Failed {
        /// Command line.
        command: String,
        /// Exit status.
        status: std::process::ExitStatus,
        /// Its standard error.
        stderr: String,
    },
    /// A program was killed, and not by this agent.
    #[error(
        "{command} was killed, probably because the node or the container of topolvm-node is out of memory; search the \
         kernel log for \"oom-kill\""
    )]
    Killed {
        /// Command line.
        command: String,
    },
    /// The mount would not be seen outside of the agent's container.
    #[error(
        "{} is not in a directory that topolvm-node shares with the kubelet; set the root directory of the kubelet in \
         the installation of topolvm-node: --kubelet-dir of kubectl topolvm install, node.kubeletWorkDirectory of the \
         chart, the hostPaths and --kubelet-dir in the manifests",
        .0.display()
    )]
    NotShared(PathBuf),
    /// The mount is on the node, and not in the mount table of the agent's container.
    #[error(
        "{} is mounted on the node, but topolvm-node does not see the mount and cannot unmount it; set the root \
         directory of the kubelet in the installation of topolvm-node: --kubelet-dir of kubectl topolvm install, \
         node.kubeletWorkDirectory of the chart, the hostPaths and --kubelet-dir in the manifests",
        .0.display()
    )]
    NotVisible(PathBuf),
    /// A program exceeded its deadline and was killed.
    #[error("{command} did not end within {} s and was killed", .limit.as_secs())]
    TooSlow {
        /// Command line.
        command: String,
        /// Deadline.
        limit: Duration,
        /// Set if it does not end even then, because the kernel waits for a disk.
        hung_task: Option<HungTask>,
    },
    /// A file system call exceeded its deadline, as on a device that hangs.
    #[error("{} does not answer; search the kernel log for a failed disk", .path.display())]
    Hung {
        /// Path of the call.
        path: PathBuf,
        /// The thread that still waits.
        hung_task: HungTask,
    },
    /// The mount is in use.
    #[error(
        "cannot unmount {}, which is in use: {}", .path.display(),
        if holders.is_empty() { "/proc shows no process that uses it".to_owned() } else { list(holders) }
    )]
    Busy {
        /// Path of the mount.
        path: PathBuf,
        /// Its holders.
        holders: Vec<MountHolder>,
    },
    /// The device is in use, so that its filesystem cannot be checked.
    #[error("cannot check the filesystem on {}, which is in use: {}", .device.display(), list(holders))]
    Held {
        /// Path of the device.
        device: PathBuf,
        /// Its holders.
        holders: Vec<DeviceUse>,
    },
    /// The filesystem is frozen, so that everything waits that would change it.
    #[error(
        "the filesystem at {} is frozen, probably by a backup tool; wait for the tool to thaw it, or run fsfreeze \
         --unfreeze {} on the node",
        .path.display(), .path.display()
    )]
    Frozen {
        /// Path at which it is mounted.
        path: PathBuf,
        /// The program that waits until it is thawed.
        waiting: Option<HungTask>,
    },
    /// The filesystem is damaged.
    #[error(
        "the {filesystem} filesystem on {} is damaged and is not mounted: {report}; {}",
        .device.display(), .filesystem.repair_hint()
    )]
    Damaged {
        /// Path of the device.
        device: PathBuf,
        /// Type of the filesystem.
        filesystem: Filesystem,
        /// Report of the check or the kernel.
        report: String,
    },
    /// The kernel does not mount a copied btrfs in addition to its source, which has the same UUID.
    #[error(
        "the copied btrfs filesystem on {} has a log tree that only a mount replays, and this kernel does not mount it \
         while its source is mounted: stop the pods that use the source until this volume is mounted (before Linux 6.2 \
         also run btrfs device scan --forget on the device of the source), or use Linux 6.7 or later",
        .device.display()
    )]
    SameIdentity {
        /// Path of the device of the copy.
        device: PathBuf,
    },
    /// The superblock of a filesystem cannot be parsed.
    #[error("{} has no readable {filesystem} superblock", .device.display())]
    Superblock {
        /// Path of the device.
        device: PathBuf,
        /// Type of the filesystem.
        filesystem: Filesystem,
    },
}

/// Lists what uses a device or a mount.
fn list(uses: &[impl ToString]) -> String {
    uses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl MountError {
    /// Returns the task that still waits for the kernel, if any. One that waits for a thaw does not count: unpublishing
    /// thaws, and must not wait for the task.
    pub const fn hung_task(&self) -> Option<&HungTask> {
        if let Self::Hung { hung_task, .. } | Self::TooSlow { hung_task: Some(hung_task), .. } = self {
            Some(hung_task)
        } else {
            None
        }
    }

    /// Replaces the path of the device by one that people know: what a device node such as dm-3 means changes with a
    /// reboot.
    #[must_use]
    pub fn of_device(self, path: &Path) -> Self {
        if let Self::Damaged { device: _, filesystem, report } = self {
            Self::Damaged { device: path.to_owned(), filesystem, report }
        } else {
            self
        }
    }

    /// Makes an I/O error with what was tried on which path.
    pub fn io(action: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Io { action, path: path.to_owned(), source: source.into() }
    }
}
