//! Why a request was not done, and its gRPC code.

mod reason;

use tonic::Code;
use topolvm_runtime::grpc::{GrpcCode, Reason};

use lvm::{InvalidName, LvName, VgName};

/// Why the engine did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No device class of this name is configured; the empty name asks for the default class.
    #[error("device-class not found: {0}; see device-classes in the configuration of lvmd on this node")]
    UnknownDeviceClass(String),
    /// No option class of this name is configured.
    #[error(
        "unsupported lvcreate-option-class target: {0}; see lvcreate-option-classes in the configuration of lvmd on this node"
    )]
    UnknownOptionClass(String),
    /// LVM does not find the volume group of a class. Nothing is known about the volumes in it.
    #[error("volume group {0} not found; check that its disks are there")]
    VolumeGroupMissing(VgName),
    /// LVM finds the volume group without some of its physical volumes, and changes nothing in it.
    #[error(
        "volume group {vg} lacks {missing} of its physical volumes, so LVM makes nothing in it; bring the disks back, or give \
         them up with `vgreduce --removemissing {vg}`"
    )]
    PhysicalVolumesMissing {
        /// The group.
        vg: VgName,
        /// How many are missing.
        missing: u64,
    },
    /// The thin pool of a class that wipes gives out blocks with what was in them.
    #[error(
        "thin pool {vg}/{pool} does not zero the blocks that it gives out, but wipe is zero; run `lvchange --zero y {vg}/{pool}`"
    )]
    LeakingPool {
        /// The group.
        vg: VgName,
        /// The pool.
        pool: LvName,
    },
    /// Somebody has the volume open.
    #[error("logical volume {vg}/{name} is in use: it is mounted, or open in a process")]
    InUse {
        /// The group.
        vg: VgName,
        /// The volume.
        name: LvName,
    },
    /// The volume group is there without the thin pool of a class.
    #[error("thin pool {vg}/{pool} not found; create it with `lvcreate -T {vg}/{pool} -L SIZE`")]
    ThinPoolMissing {
        /// The group.
        vg: VgName,
        /// The pool.
        pool: LvName,
    },
    /// LVM listed the volume group, and the volume is not in it.
    #[error("logical volume {vg}/{name} not found")]
    VolumeNotFound {
        /// The group.
        vg: VgName,
        /// The volume.
        name: LvName,
    },
    /// There is a volume of this name that cannot be the wanted one.
    #[error("logical volume {vg}/{name} already exists and {difference}")]
    AlreadyExists {
        /// The group.
        vg: VgName,
        /// The volume.
        name: LvName,
        /// What is different from the wanted volume.
        difference: String,
    },
    /// Less is available than was asked for. Sizes are bytes; `free` is without the spare.
    #[error("no enough space left on VG: free={free}, requested={requested}")]
    NoSpace {
        /// What may still be given away.
        free: u64,
        /// What was asked for.
        requested: u64,
    },
    /// LVM makes no volumes in a thin pool that is full, or has less left than it was told to keep.
    #[error(
        "thin pool {vg}/{pool} takes no new volumes: {why}; delete data in it, or extend it with `lvextend -L +SIZE {vg}/{pool}`, its metadata \
         with `lvextend --poolmetadatasize +SIZE {vg}/{pool}`"
    )]
    PoolFull {
        /// The group.
        vg: VgName,
        /// The pool.
        pool: LvName,
        /// What is full, and how full it is.
        why: String,
    },
    /// LVM makes no volumes in a thin pool that has failed or must be repaired.
    #[error("thin pool {vg}/{pool} takes no new volumes: {why}; repair it, see lvmthin(7)")]
    PoolBroken {
        /// The group.
        vg: VgName,
        /// The pool.
        pool: LvName,
        /// What is wrong with it.
        why: String,
    },
    /// The volume of this name is not where the class keeps its volumes.
    #[error("logical volume {vg}/{name} {why}")]
    Elsewhere {
        /// The group.
        vg: VgName,
        /// The volume.
        name: LvName,
        /// Where it is.
        why: String,
    },
    /// More than one volume on this machine could be the one that is asked for.
    #[error("logical volume {name} is in more than one volume group: {}; remove or rename the copies", .vgs.join(", "))]
    Ambiguous {
        /// The volume.
        name: LvName,
        /// The groups.
        vgs: Vec<String>,
    },
    /// The volume is not of the kind that may be changed in this way.
    #[error("logical volume {vg}/{name} {why}")]
    NotAllowed {
        /// The group.
        vg: VgName,
        /// The volume.
        name: LvName,
        /// What is in the way.
        why: String,
    },
    /// Another lvmd is making this volume, or died over it.
    #[error(
        "logical volume {vg}/{name} is being made by another lvmd; try again, what was left over is removed after some minutes"
    )]
    BeingMade {
        /// The group.
        vg: VgName,
        /// The volume.
        name: LvName,
    },
    /// LVM made a new volume of a thin device that was in the pool already, with data in it. It was given to nobody.
    #[error(
        "LVM took a thin device for the new volume that was left in thin pool {vg}/{pool} with data in it; {}; try again",
        kept.as_ref().map_or_else(
            || "no volume ever had it, and it is removed".to_owned(),
            |kept| format!("it may be a volume of older LVM metadata, so it is kept as {vg}/{kept}: remove it when nobody misses it"),
        )
    )]
    NotEmpty {
        /// The group.
        vg: VgName,
        /// The pool.
        pool: LvName,
        /// The volume with the device, under its new name.
        kept: Option<LvName>,
    },
    /// LVM made a volume and then did not list it.
    #[error("logical volume {vg}/{name} was made but LVM does not list it")]
    Vanished {
        /// The group.
        vg: VgName,
        /// The volume.
        name: LvName,
    },
    /// LVM failed.
    #[error(transparent)]
    Lvm(lvm::Error),
    /// The work on the request broke off.
    #[error("the work on the request broke off")]
    Interrupted(#[source] tokio::task::JoinError),
    /// The process is about to end.
    #[error("lvmd is stopping; try again")]
    Stopping,
    /// Snapshots need thin pools.
    #[error("device class {0} is thick; snapshots need a thin one")]
    ThickClass(String),
    /// Only thin volumes have snapshots.
    #[error("logical volume {vg}/{name} is not thin and cannot have snapshots")]
    ThickSource {
        /// The group.
        vg: VgName,
        /// The volume.
        name: LvName,
    },
    /// A snapshot has all that its source has. Sizes are bytes.
    #[error("requested size {requested} is smaller than the source's {source_size}")]
    SmallerThanSource {
        /// What was asked for.
        requested: u64,
        /// Size of the source.
        source_size: u64,
    },
    /// A tag of our own is none for LVM.
    #[error(transparent)]
    Tag(#[from] InvalidName),
}

/// The two "not found" of LVM become what they mean here; everything else stays what it is.
impl From<lvm::Error> for Error {
    fn from(error: lvm::Error) -> Self {
        match error {
            lvm::Error::GroupNotFound(vg) => Self::VolumeGroupMissing(vg),
            lvm::Error::VolumeNotFound { vg, name } => Self::VolumeNotFound { vg, name },
            other @ (lvm::Error::AlreadyExists { .. }
            | lvm::Error::NoSpace { .. }
            | lvm::Error::Busy { .. }
            | lvm::Error::Changed { .. }
            | lvm::Error::Incomplete { .. }
            | lvm::Error::Timeout { .. }
            | lvm::Error::Run { .. }
            | lvm::Error::Exit { .. }
            | lvm::Error::ThinDeviceExists { .. }
            | lvm::Error::Report { .. }) => Self::Lvm(other),
        }
    }
}

impl GrpcCode for Error {
    fn code(&self) -> Code {
        match self {
            // topolvm-node takes NotFound from RemoveLV for "it is gone" and forgets the volume. So this code means that LVM
            // listed the group without the volume, and never that a class or a group is missing.
            Self::VolumeNotFound { .. } => Code::NotFound,
            Self::UnknownDeviceClass(_)
            | Self::UnknownOptionClass(_)
            | Self::VolumeGroupMissing(_)
            | Self::PhysicalVolumesMissing { .. }
            | Self::ThinPoolMissing { .. }
            | Self::LeakingPool { .. }
            | Self::PoolBroken { .. }
            | Self::InUse { .. }
            | Self::Elsewhere { .. }
            | Self::Ambiguous { .. }
            | Self::NotAllowed { .. } => Code::FailedPrecondition,
            Self::AlreadyExists { .. } => Code::AlreadyExists,
            // The provisioner lets the scheduler choose another node.
            Self::NoSpace { .. } | Self::PoolFull { .. } => Code::ResourceExhausted,
            Self::Vanished { .. } | Self::Interrupted(_) | Self::Tag(_) => Code::Internal,
            Self::BeingMade { .. } | Self::NotEmpty { .. } | Self::Stopping => Code::Unavailable,
            Self::ThickClass(_) | Self::ThickSource { .. } => Code::Unimplemented,
            Self::SmallerThanSource { .. } => Code::OutOfRange,
            Self::Lvm(error) => lvm_code(error),
        }
    }

    fn reason(&self) -> Option<Reason> {
        reason::of(self).map(|reason| Reason { reason, domain: reason::DOMAIN })
    }
}

fn lvm_code(error: &lvm::Error) -> Code {
    match error {
        lvm::Error::NoSpace { .. } => Code::ResourceExhausted,
        lvm::Error::AlreadyExists { .. } => Code::AlreadyExists,
        lvm::Error::Busy { .. } | lvm::Error::Incomplete { .. } | lvm::Error::GroupNotFound(_) => {
            Code::FailedPrecondition
        }
        lvm::Error::VolumeNotFound { .. } => Code::NotFound,
        lvm::Error::Changed { .. } => Code::Unavailable,
        // CSI: the outcome is not known, ask again.
        lvm::Error::Timeout { .. } => Code::DeadlineExceeded,
        lvm::Error::Run { .. }
        | lvm::Error::Exit { .. }
        | lvm::Error::Report { .. }
        | lvm::Error::ThinDeviceExists { .. } => Code::Internal,
    }
}

/// A request that cannot mean anything, whatever the state of the node.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InvalidRequest {
    #[error(transparent)]
    Name(#[from] InvalidName),
    #[error("invalid size {0}: it must be a positive multiple of 4096 bytes")]
    Size(i64),
    #[error("invalid size {0}: it must not be negative")]
    NegativeSize(i64),
    #[error("invalid access type {0:?}: it must be ro or rw")]
    AccessType(String),
    #[error("invalid tag {0:?}: only lvmd itself writes it")]
    ReservedTag(String),
    #[error("{tags} tags: a request may have {most} at most")]
    TooManyTags { tags: usize, most: usize },
    #[error("tags of {bytes} characters in all: a request may have {most} at most")]
    LongTags { bytes: usize, most: usize },
    #[error("invalid name {0:?}: lvmd keeps it for volumes that are being wiped")]
    ReservedName(String),
}

impl GrpcCode for InvalidRequest {
    fn code(&self) -> Code {
        match self {
            Self::Name(_)
            | Self::Size(_)
            | Self::NegativeSize(_)
            | Self::AccessType(_)
            | Self::ReservedTag(_)
            | Self::TooManyTags { .. }
            | Self::LongTags { .. }
            | Self::ReservedName(_) => Code::InvalidArgument,
        }
    }
}
