//! Errors of the Node service. The gRPC code of each is in `status_code`.

use std::path::PathBuf;

use linux_mount::{HungTask, MkfsOptionError, MountError, OptionError, UnsupportedFilesystem};
use lvmd_client::LvmdError;

use crate::volumes::{LookupError, RecordError};

/// Error of a call of the Node service.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CsiError {
    /// The request is invalid.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The volume is unknown, or its lookup failed.
    #[error(transparent)]
    Lookup(#[from] LookupError),
    /// The LogicalVolume does not exist, and the data still exists.
    #[error(
        "{error}: its LogicalVolume does not exist, and its data still exists in {}; to recreate the LogicalVolume: \
         kubectl topolvm undelete --all",
        .lv.display()
    )]
    ObjectGone {
        /// Path of the LV.
        lv: PathBuf,
        /// Error of the lookup.
        error: LookupError,
    },
    /// There is no LogicalVolume, and no LV in the volume groups of the device classes.
    #[error(
        "{0}: it has no LogicalVolume and no LV in any volume group of a device class; check whether its disk is \
         attached to another node, or its volume group is missing in the configuration of lvmd"
    )]
    NeitherObjectNorLv(LookupError),
    /// The record of the filesystem cannot be stored.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// lvmd answered with an error.
    #[error(transparent)]
    Lvmd(#[from] LvmdError),
    /// A mount, a device or a program failed.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// The LogicalVolume object has no LV in LVM.
    #[error("volume {0} has no logical volume in LVM on this node")]
    NoLv(String),
    /// The LV is active, and its device is not in the `/dev` of the agent's container: without a mount the container
    /// runtime makes device nodes for the devices that are there when the container starts.
    #[error(
        "device {} does not exist in the container of topolvm-node, although its logical volume is active; mount /dev \
         of the node there (a hostPath volume /dev at mountPath /dev, as in deploy/manifests/base/node.yaml), or, if \
         that is mounted, run `vgmknodes` on the node and check that udev works there",
        .0.display()
    )]
    DeviceNotVisible(PathBuf),
    /// The lock of the volume is held by another call.
    #[error("another operation is in progress for volume {0}; try again")]
    Busy(String),
    /// The volume is blank and is published read-only.
    #[error(
        "volume {0} has no filesystem, and a read-only volume cannot be formatted; publish it once without readOnly"
    )]
    BlankReadOnly(String),
    /// The device holds other contents than asked for. mkfs would destroy them.
    #[error(
        "volume {id} is requested with {wanted} but contains {found}; use that filesystem type, or, if the data is not \
         needed: {reformat}"
    )]
    OtherContents { id: String, reformat: String, wanted: String, found: String },
    /// The recorded filesystem is not on the device. mkfs would destroy what is left of it.
    #[error(
        "volume {id} was formatted with {recorded}, but its device {} now contains {found}; the data is left \
         unchanged. {remedy}",
        .device.display()
    )]
    FilesystemMissing {
        id: String,
        device: PathBuf,
        recorded: String,
        found: String,
        /// Steps by which the filesystem is recovered, or given up.
        remedy: String,
    },
    /// A copied volume holds data that is no filesystem. mkfs would destroy it.
    #[error(
        "volume {id} contains {found} instead of a filesystem, probably because it is a copy of a raw block volume \
         (volumeMode Block), or of a volume that was never formatted; request the copy with volumeMode Block, or, if \
         the data is not needed: {reformat}"
    )]
    CopiedData { id: String, reformat: String, found: String },
    /// The target path is in use by something else.
    #[error("{} is already in use: {found}; unmount or remove it", .target.display())]
    TargetTaken { target: PathBuf, found: &'static str },
    /// The volume is for a single writer and is published at another target path.
    #[error("volume {id} is for a single pod (ReadWriteOncePod) and is already published at {}", .other.display())]
    PublishedElsewhere { id: String, other: PathBuf },
    /// The volume is also published as a block device. A pod writes arbitrary data to it, which would damage a
    /// filesystem that is mounted in addition.
    #[error(
        "volume {id} cannot be mounted, because its device is published as a block volume at {}; delete the pod that \
         uses the block volume first",
        .other.display()
    )]
    UsedRaw { id: String, other: PathBuf },
    /// The filesystem is mounted read-only elsewhere. The kernel does not remount it read-write while that mount
    /// exists.
    #[error(
        "volume {id} cannot be published for writing, because its filesystem is mounted read-only at {}; delete the \
         pod that mounts it read-only first",
        .other.display()
    )]
    ReadOnlyElsewhere { id: String, other: PathBuf },
    /// The LV is read-only: a snapshot, or an LV that an administrator has made read-only.
    #[error("the logical volume of volume {0} is read-only; publish it with readOnly, or restore it to a new volume")]
    ReadOnlyDevice(String),
    /// The volume is published at the target with another `readonly`.
    #[error("volume {id} is already published at {} with a different readonly setting", .target.display())]
    OtherMode { id: String, target: PathBuf },
    /// Another filesystem type is mounted at the path.
    #[error(
        "volume {id} is already mounted at {} with different parameters ({found}); unmount it first",
        .target.display()
    )]
    OtherFilesystem { id: String, target: PathBuf, found: String },
    /// The agent announces staging, and the request has no staging path.
    #[error("the request has no staging_target_path; volume {0} must be staged before it is published")]
    NoStagingPath(String),
    /// The agent announces staging, and the volume is not staged.
    #[error(
        "volume {id} is not staged at {}; if --stage-volumes was enabled while its pod was starting, delete the pod",
        .staging.display()
    )]
    NotStaged { id: String, staging: PathBuf },
    /// The mounted filesystem cannot be grown.
    #[error("volume {id} has filesystem {filesystem:?}, which topolvm-node cannot expand")]
    CannotGrow { id: String, filesystem: String },
    /// The filesystem is mounted read-only, and growing writes to it.
    #[error("volume {0} is mounted read-only; its filesystem can only be expanded while it is mounted for writing")]
    GrowReadOnly(String),
    /// The volume is not published at the path.
    #[error("volume {id} is not published at {}", .path.display())]
    NotPublished { id: String, path: PathBuf },
    /// The LV is smaller than the asked-for size. The controller must grow it first.
    #[error("volume {id} has {size} bytes, less than the requested {wanted}; expand it through the controller first")]
    TooSmall { id: String, size: u64, wanted: u64 },
    /// lvmd or the API server does not answer in time when it is asked for the conditions of a volume.
    #[error(
        "no answer about volume {id} within {seconds} s; check that lvmd is running and that LVM commands end on this \
         node"
    )]
    ConditionUnknown { id: String, seconds: u64 },
    /// The task of the call ended early, which is a bug.
    #[error("the call was aborted: {0}")]
    BrokenOff(#[from] tokio::task::JoinError),
}

impl CsiError {
    /// Returns the hung task that the call has left behind, if any.
    pub(super) const fn hung_task(&self) -> Option<&HungTask> {
        if let Self::Mount(error) = self { error.hung_task() } else { None }
    }
}

/// Error in a request, whatever the state of the node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RequestError {
    /// A required field is missing.
    #[error("{0} is missing in the request")]
    Missing(&'static str),
    /// A path is not absolute, or is the root directory.
    #[error("{field} {path:?} must be an absolute path")]
    RelativePath { field: &'static str, path: String },
    /// The access mode is not supported.
    #[error("access mode {0} is not supported; use ReadWriteOnce or ReadWriteOncePod")]
    AccessMode(&'static str),
    /// The filesystem type is not supported.
    #[error(transparent)]
    Filesystem(#[from] UnsupportedFilesystem),
    /// A mount option is refused.
    #[error(transparent)]
    Options(#[from] OptionError),
    /// An option for mkfs is refused.
    #[error(transparent)]
    MkfsOptions(#[from] MkfsOptionError),
    /// The capacity range has a negative size, or a limit below the required size.
    #[error("capacity range from {required} to {limit} bytes is invalid")]
    CapacityRange { required: i64, limit: i64 },
}
