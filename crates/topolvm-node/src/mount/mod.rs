//! Mount points, filesystems and block devices of this machine behind one port. Only this module calls mount(2) and
//! starts processes.

mod blocking;
mod ext4;
mod options;
mod system;
mod table;
mod tools;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tonic::Code;
use topolvm_runtime::grpc::GrpcCode;

use crate::Filesystem;

pub(crate) use blocking::{STAT, blocking};
pub use options::{MountOptions, OptionError};
pub use system::SystemMounter;

/// Major and minor number of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceNumber {
    /// Says which driver.
    pub major: u32,
    /// Says which of its devices.
    pub minor: u32,
}

/// What is found at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// Nothing.
    Absent,
    /// A directory.
    Directory,
    /// A block device, be it a node or a bind mount of one.
    BlockDevice(DeviceNumber),
    /// A file, socket or whatever else there is.
    Other,
}

/// Something that is mounted at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The device of the mounted filesystem. For the bind mount of a device node that is not the device itself, but the
    /// filesystem on which the node lies.
    pub device: DeviceNumber,
    /// Type of the mounted filesystem.
    pub filesystem: String,
    /// Whether it was mounted for reading only.
    pub readonly: bool,
}

/// What lies on a block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Nothing that anybody would miss.
    Blank,
    /// A filesystem of this type.
    Filesystem(String),
    /// Something else, in words.
    Other(String),
}

/// A block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockDevice {
    /// Its number.
    pub number: DeviceNumber,
    /// Its size in bytes.
    pub size_bytes: u64,
}

/// What the CSI node service needs from the machine.
pub trait Mounter: Send + Sync + 'static {
    /// What is found at the path, links followed.
    fn inspect(&self, path: &Path) -> impl Future<Output = Result<PathKind, Error>> + Send;

    /// What is mounted at exactly this path, the lowest layer first. Must work on a mount whose filesystem has failed.
    fn mounts_at(&self, target: &Path) -> impl Future<Output = Result<Vec<Mount>, Error>> + Send;

    /// Number and size of a block device.
    fn block_device(&self, path: &Path) -> impl Future<Output = Result<BlockDevice, Error>> + Send;

    /// What lies on a block device. [`Contents::Blank`] must be certain: the device is then overwritten.
    fn contents(&self, device: &Path) -> impl Future<Output = Result<Contents, Error>> + Send;

    /// Makes a filesystem on a blank device.
    fn format(&self, device: &Path, filesystem: Filesystem) -> impl Future<Output = Result<(), Error>> + Send;

    /// Mounts a filesystem.
    fn mount(
        &self,
        device: &Path,
        target: &Path,
        filesystem: Filesystem,
        options: &MountOptions,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Makes the node of a device appear at a file.
    fn bind(&self, device: &Path, target: &Path) -> impl Future<Output = Result<(), Error>> + Send;

    /// Turns the bind mount at a path into one for reading only.
    fn make_readonly(&self, target: &Path) -> impl Future<Output = Result<(), Error>> + Send;

    /// Takes away the topmost layer that is mounted at a path.
    fn unmount(&self, target: &Path) -> impl Future<Output = Result<(), Error>> + Send;

    /// Grows a mounted filesystem to the size of its device, where it is smaller.
    fn grow(&self, device: &Path, filesystem: Filesystem) -> impl Future<Output = Result<(), Error>> + Send;

    /// Space and inodes of the filesystem mounted at a path.
    fn usage(&self, path: &Path) -> impl Future<Output = Result<FilesystemUsage, Error>> + Send;
}

/// Space and inodes of a filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilesystemUsage {
    /// Size in bytes.
    pub total_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Bytes that a process without privileges may still use.
    pub available_bytes: u64,
    /// Number of inodes; 0 where the filesystem makes them as needed.
    pub total_inodes: u64,
    /// Inodes in use.
    pub used_inodes: u64,
    /// Free inodes.
    pub free_inodes: u64,
}

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
    },
    /// A filesystem did not answer, as on a device that hangs.
    #[error("{} does not answer; look for a failed disk in the kernel's log", .0.display())]
    Hangs(PathBuf),
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
    /// An I/O error with what was tried.
    pub(crate) fn io(action: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Self::Io { action, path: path.to_owned(), source: source.into() }
    }
}

impl GrpcCode for Error {
    fn code(&self) -> Code {
        match self {
            Self::NoDevice(_) => Code::FailedPrecondition,
            Self::TooSlow { .. } | Self::Hangs(_) => Code::DeadlineExceeded,
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
