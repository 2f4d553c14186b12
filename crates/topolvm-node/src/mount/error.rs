//! Why something could not be mounted, formatted, measured or found.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::Code;
use topolvm_runtime::grpc::GrpcCode;

use super::{DeviceNumber, Stuck};
use crate::Filesystem;

/// Why something could not be mounted, formatted, measured or found.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel said no.
    #[error("cannot {action} {}", .path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// What came back.
        source: io::Error,
    },
    /// The mount table cannot be read.
    #[error("cannot read the mount table /proc/self/mountinfo")]
    Table(#[source] procfs::ProcError),
    /// A block device was expected.
    #[error("{} is not a block device", .0.display())]
    NotABlockDevice(PathBuf),
    /// The LV has no device node.
    #[error("device {} is not there; is the logical volume active (lvchange --activate y)?", .0.display())]
    NoDevice(PathBuf),
    /// The path leads to another device than the LV's: whatever is done to it would be done to somebody else's data.
    #[error(
        "{} leads to {}, but the logical volume is device {wanted}; run `vgmknodes` on the node, and look whether udev works there",
        .path.display(), found.map_or_else(|| "no device".to_owned(), |found| format!("device {found}"))
    )]
    WrongDevice {
        /// The path that LVM gives for the LV.
        path: PathBuf,
        /// The device that it leads to.
        found: Option<DeviceNumber>,
        /// The device of the LV.
        wanted: DeviceNumber,
    },
    /// A program is missing on this machine.
    #[error("program {0} is not installed; install it in the image or on the node")]
    NoTool(&'static str),
    /// A program cannot be started.
    #[error("cannot start {command}")]
    Spawn {
        /// The whole command line.
        command: String,
        /// What came back.
        source: io::Error,
    },
    /// A program ended with a failure.
    #[error("{command} failed with {status}: {stderr}")]
    Failed {
        /// The whole command line.
        command: String,
        /// How it ended.
        status: std::process::ExitStatus,
        /// What it said.
        stderr: String,
    },
    /// A program took too long and was killed.
    #[error("{command} did not end within {} s and was killed", .limit.as_secs())]
    TooSlow {
        /// The whole command line.
        command: String,
        /// How long it was given.
        limit: Duration,
        /// It cannot even be killed, because the kernel waits for a disk.
        stuck: Option<Stuck>,
    },
    /// A filesystem did not answer, as on a device that hangs.
    #[error("{} does not answer; look for a failed disk in the kernel's log", .path.display())]
    Hangs {
        /// What was looked at.
        path: PathBuf,
        /// The thread that still waits for the answer.
        stuck: Stuck,
    },
    /// The filesystem cannot be mounted as it is.
    #[error(
        "the {filesystem} filesystem on {} is damaged and is not mounted: {report}; {}",
        .device.display(), super::programs::repair_hint(*.filesystem)
    )]
    Damaged {
        /// The device.
        device: PathBuf,
        /// What lies on it.
        filesystem: Filesystem,
        /// What the check said.
        report: String,
    },
    /// The kernel does not mount a copied btrfs beside its source, which has the same identity.
    #[error(
        "the copied btrfs on {} has a log of what was fsynced, which only a mount replays, and this kernel does not mount it beside its source: \
         end the pods that use the source until this volume is mounted (before Linux 6.2 also run btrfs device scan --forget on the device of the \
         source), or use Linux 6.7 or later",
        .device.display()
    )]
    SameIdentity {
        /// The device of the copy.
        device: PathBuf,
    },
    /// A device holds something that is not what it should be.
    #[error("{} holds no readable {filesystem} superblock", .device.display())]
    Superblock {
        /// The device.
        device: PathBuf,
        /// What should lie on it.
        filesystem: Filesystem,
    },
}

impl Error {
    /// What still waits for the kernel, if anything does.
    pub(crate) const fn stuck(&self) -> Option<&Stuck> {
        match self {
            Self::Hangs { stuck, .. } => Some(stuck),
            Self::TooSlow { stuck, .. } => stuck.as_ref(),
            Self::Io { .. }
            | Self::Table(_)
            | Self::NotABlockDevice(_)
            | Self::NoDevice(_)
            | Self::WrongDevice { .. }
            | Self::NoTool(_)
            | Self::Spawn { .. }
            | Self::Failed { .. }
            | Self::Damaged { .. }
            | Self::SameIdentity { .. }
            | Self::Superblock { .. } => None,
        }
    }

    /// The same about a device that people know by this path: what a device node without a name means changes with a reboot.
    #[must_use]
    pub(crate) fn of_device(self, path: &Path) -> Self {
        if let Self::Damaged { device: _, filesystem, report } = self {
            Self::Damaged { device: path.to_owned(), filesystem, report }
        } else {
            self
        }
    }

    /// An I/O error with what was tried.
    pub(crate) fn io(action: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Io { action, path: path.to_owned(), source: source.into() }
    }
}

impl GrpcCode for Error {
    fn code(&self) -> Code {
        match self {
            Self::NoDevice(_) | Self::WrongDevice { .. } | Self::Damaged { .. } | Self::SameIdentity { .. } => {
                Code::FailedPrecondition
            }
            Self::TooSlow { .. } | Self::Hangs { .. } => Code::DeadlineExceeded,
            Self::Io { .. }
            | Self::Table(_)
            | Self::NotABlockDevice(_)
            | Self::NoTool(_)
            | Self::Spawn { .. }
            | Self::Failed { .. }
            | Self::Superblock { .. } => Code::Internal,
        }
    }
}
