//! Why a call of the Node service fails.

use std::path::PathBuf;

use tonic::{Code, Status};
use topolvm_runtime::grpc::{GrpcCode, into_status};

use super::request::RequestError;
use crate::lvmd;
use crate::mount;
use crate::volumes::{LookupError, RecordError};

/// Why a call of the Node service fails.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request itself is wrong.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The volume is unknown or cannot be looked up.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// What was made cannot be written down.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// lvmd said no.
    #[error(transparent)]
    Lvmd(#[from] lvmd::Error),
    /// The machine said no.
    #[error(transparent)]
    Mount(#[from] mount::Error),
    /// There is a LogicalVolume object but no LV.
    #[error("volume {0} has no logical volume in LVM on this node")]
    NoLv(String),
    /// Another call for the same volume is running.
    #[error("volume {0} is being worked on by another call; try again")]
    Busy(String),
    /// There is nothing to read and nothing may be written.
    #[error(
        "volume {0} has no filesystem yet, and one cannot be made while it is published for reading only; publish it for writing once"
    )]
    BlankReadOnly(String),
    /// Making the filesystem would destroy what is there.
    #[error(
        "volume {id} was asked for with {wanted} but holds {found}; use that filesystem type, or, if the data is not needed: {reformat}"
    )]
    OtherContents {
        /// The volume.
        id: String,
        /// The command that gives up the data.
        reformat: String,
        /// The asked-for filesystem.
        wanted: String,
        /// What is there.
        found: String,
    },
    /// A filesystem was made and cannot be seen any more. Making another would destroy what is left of it.
    #[error(
        "volume {id} was formatted with {recorded}, and its device {} now shows {found}; nothing on it is changed. {remedy}",
        .device.display()
    )]
    FilesystemMissing {
        /// The volume.
        id: String,
        /// Its device.
        device: PathBuf,
        /// The filesystem of the record.
        recorded: String,
        /// What is there.
        found: String,
        /// How the filesystem is recovered, or given up.
        remedy: String,
    },
    /// Making the filesystem would destroy what was copied.
    #[error(
        "volume {id} is a copy of data that is no filesystem; ask for it with volumeMode Block, or, if the data is not needed: {reformat}"
    )]
    CopiedData {
        /// The volume.
        id: String,
        /// The command that gives up the data.
        reformat: String,
    },
    /// Something else is in the way.
    #[error("{} is taken: {found}; unmount or remove it", .target.display())]
    TargetTaken {
        /// The target path.
        target: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// It may appear at one path only, and does so elsewhere.
    #[error("volume {id} is for a single pod (ReadWriteOncePod) and is published at {} already", .other.display())]
    PublishedElsewhere {
        /// The volume.
        id: String,
        /// Where it is.
        other: PathBuf,
    },
    /// A pod writes to the device what it likes, and a filesystem that is mounted beside it would be damaged.
    #[error(
        "volume {id} cannot be mounted, because its device is published raw at {}; end the pod that has it as a block volume first",
        .other.display()
    )]
    UsedRaw {
        /// The volume.
        id: String,
        /// Where it is.
        other: PathBuf,
    },
    /// The kernel cannot change its mind about a mounted filesystem.
    #[error(
        "volume {id} cannot be published for writing, because its filesystem is mounted for reading only at {}; end the pod that reads it first",
        .other.display()
    )]
    ReadOnlyElsewhere {
        /// The volume.
        id: String,
        /// Where it is.
        other: PathBuf,
    },
    /// A snapshot, or an LV that an administrator has made so.
    #[error(
        "the logical volume of volume {0} is read-only; publish it for reading only, or restore it to a new volume"
    )]
    ReadOnlyDevice(String),
    /// Published already, but not in this way.
    #[error("volume {id} is already published at {} with another readonly setting", .target.display())]
    OtherMode {
        /// The volume.
        id: String,
        /// The target path.
        target: PathBuf,
    },
    /// Mounted already, but as something else.
    #[error(
        "volume {id} was asked for in another way than it is mounted at {}, where {found} is mounted; unmount that first",
        .target.display()
    )]
    OtherFilesystem {
        /// The volume.
        id: String,
        /// The path.
        target: PathBuf,
        /// The filesystem that is mounted there.
        found: String,
    },
    /// The agent announces staging, and the caller leaves it out.
    #[error("staging_target_path is missing in the request, and volume {0} must be staged before it is published")]
    NoStagingPath(String),
    /// The agent announces staging, and nobody has done it.
    #[error(
        "volume {id} is not staged at {}; if staging was switched on while its pod was being started, delete the pod",
        .staging.display()
    )]
    NotStaged {
        /// The volume.
        id: String,
        /// Where it should be.
        staging: PathBuf,
    },
    /// The filesystem that is mounted cannot be grown.
    #[error("volume {id} carries filesystem {filesystem:?}, which this agent cannot grow")]
    CannotGrow {
        /// The volume.
        id: String,
        /// Its filesystem.
        filesystem: String,
    },
    /// Growing writes.
    #[error("volume {0} is mounted for reading only, and its filesystem can only grow when it is mounted for writing")]
    GrowReadOnly(String),
    /// The volume is not there.
    #[error("volume {id} is not published at {}", .path.display())]
    NotPublished {
        /// The volume.
        id: String,
        /// The path.
        path: PathBuf,
    },
    /// The LV must be grown before what lies on it.
    #[error("volume {id} has {size} bytes, less than the {wanted} asked for; expand it through the controller first")]
    TooSmall {
        /// The volume.
        id: String,
        /// Its size in bytes.
        size: u64,
        /// The asked-for size in bytes.
        wanted: u64,
    },
    /// A bug.
    #[error("the call was broken off: {0}")]
    BrokenOff(#[from] tokio::task::JoinError),
}

impl Error {
    /// What still waits for the kernel, if anything does.
    pub(super) const fn stuck(&self) -> Option<&mount::Stuck> {
        if let Self::Mount(error) = self { error.stuck() } else { None }
    }
}

impl GrpcCode for Error {
    fn code(&self) -> Code {
        match self {
            Self::Request(error) => error.code(),
            Self::Lookup(error) => error.code(),
            Self::Record(error) => error.code(),
            Self::Lvmd(error) => error.code(),
            Self::Mount(error) => error.code(),
            Self::NoLv(_) | Self::NotPublished { .. } => Code::NotFound,
            Self::Busy(_) => Code::Aborted,
            Self::OtherMode { .. } | Self::OtherFilesystem { .. } => Code::AlreadyExists,
            Self::BlankReadOnly(_)
            | Self::OtherContents { .. }
            | Self::FilesystemMissing { .. }
            | Self::CopiedData { .. }
            | Self::TargetTaken { .. }
            | Self::PublishedElsewhere { .. }
            | Self::UsedRaw { .. }
            | Self::ReadOnlyElsewhere { .. }
            | Self::ReadOnlyDevice(_)
            | Self::NoStagingPath(_)
            | Self::NotStaged { .. }
            | Self::GrowReadOnly(_)
            | Self::TooSmall { .. } => Code::FailedPrecondition,
            Self::CannotGrow { .. } => Code::Unimplemented,
            Self::BrokenOff(_) => Code::Internal,
        }
    }
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        into_status(error)
    }
}
