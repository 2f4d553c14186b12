//! Decides the gRPC code of each error, and its reason: a keyword that clients rely on, sent in `google.rpc.ErrorInfo`
//! with the code. docs/errors.md describes how the CSI sidecars handle each code.

use tonic::Code;
use topolvm_runtime::grpc::{GrpcCode, Reason};

use super::Error;

/// The domain of the reasons in `google.rpc.ErrorInfo`.
const DOMAIN: &str = "lvmd.topolvm.io";
const VG_UNREADABLE: &str = "VG_UNREADABLE";

impl GrpcCode for Error {
    fn code(&self) -> Code {
        self.code_and_reason().0
    }

    fn reason(&self) -> Option<Reason> {
        self.code_and_reason().1.map(|reason| Reason { reason, domain: DOMAIN })
    }
}

impl Error {
    /// Returns code and reason; no reason for a mistake of lvmd itself.
    fn code_and_reason(&self) -> (Code, Option<&'static str>) {
        let (code, reason) = match self {
            // topolvm-node takes NotFound from RemoveLV for "it is gone" and forgets the volume. So this code means
            // that LVM listed the group without the volume, and never that a class or a group is missing.
            Self::VolumeNotFound { .. } => (Code::NotFound, "LV_NOT_FOUND"),
            Self::UnknownDeviceClass(_) => (Code::FailedPrecondition, "DEVICE_CLASS_UNKNOWN"),
            Self::UnknownOptionClass(_) => (Code::FailedPrecondition, "OPTION_CLASS_UNKNOWN"),
            Self::VolumeGroupMissing(_) | Self::FormerGroupMissing { .. } => (Code::FailedPrecondition, "VG_NOT_FOUND"),
            Self::VolumeGroupUnreadable { .. } => (Code::FailedPrecondition, VG_UNREADABLE),
            Self::PhysicalVolumesMissing { .. } => (Code::FailedPrecondition, "VG_INCOMPLETE"),
            Self::ThinPoolMissing { .. } => (Code::FailedPrecondition, "THIN_POOL_NOT_FOUND"),
            Self::PoolDoesNotZero { .. } => (Code::FailedPrecondition, "THIN_POOL_DOES_NOT_ZERO"),
            Self::PoolBroken { .. } => (Code::FailedPrecondition, "THIN_POOL_BROKEN"),
            Self::InUse { .. } => (Code::FailedPrecondition, "LV_IN_USE"),
            Self::NotAllowed { .. } | Self::Elsewhere { .. } | Self::Ambiguous { .. } => {
                (Code::FailedPrecondition, "LV_NOT_ALLOWED")
            }
            Self::AlreadyExists { .. } => (Code::AlreadyExists, "LV_EXISTS"),
            // The provisioner lets the scheduler choose another node.
            Self::NoSpace { .. } | Self::PoolFull { .. } | Self::NoSpaceForDisk { .. } | Self::NoPlaceFor { .. } => {
                (Code::ResourceExhausted, "NO_SPACE")
            }
            Self::ClassRefused { .. } => (Code::ResourceExhausted, "VOLUMES_REFUSED"),
            Self::GroupNotOurs(_) => (Code::FailedPrecondition, "VG_NOT_OURS"),
            Self::DiskNotFound { .. } => (Code::NotFound, "PV_NOT_FOUND"),
            Self::DiskNotAdded { .. } => (Code::FailedPrecondition, "DISK_NOT_ADDED"),
            Self::VolumesStay { .. } | Self::MoveFailed { .. } | Self::MovedIncompletely(_) => {
                (Code::FailedPrecondition, "PV_FAILING")
            }
            Self::DiskNotAllowed { .. } => (Code::FailedPrecondition, "PV_NOT_ALLOWED"),
            Self::BeingMade { .. } | Self::NotEmpty { .. } => (Code::Unavailable, "LV_BEING_MADE"),
            Self::MoveNotEnded { .. } | Self::MoveTakesLong { .. } => (Code::Unavailable, "LV_BEING_MOVED"),
            Self::Quarantined(_) => (Code::Unavailable, "LV_QUARANTINED"),
            Self::Stopping => (Code::Unavailable, "STOPPING"),
            Self::ThickClass(_) | Self::ThickSource { .. } => (Code::Unimplemented, "SNAPSHOT_NEEDS_THIN"),
            Self::SourceElsewhere { .. } => (Code::FailedPrecondition, "LV_NOT_ALLOWED"),
            Self::SnapshotGroupIncomplete { .. } => (Code::FailedPrecondition, "SNAPSHOT_GROUP_INCOMPLETE"),
            Self::SmallerThanSource { .. } => (Code::OutOfRange, "SMALLER_THAN_SOURCE"),
            Self::Lvm(error) => lvm_code_and_reason(error),
            Self::Vanished { .. } | Self::DiskVanished { .. } | Self::Interrupted(_) | Self::Tag(_) => {
                return (Code::Internal, None);
            }
        };
        (code, Some(reason))
    }
}

fn lvm_code_and_reason(error: &lvm::Error) -> (Code, &'static str) {
    match error {
        lvm::Error::VolumeNotFound { .. } => (Code::NotFound, "LV_NOT_FOUND"),
        lvm::Error::GroupNotFound(_) => (Code::FailedPrecondition, "VG_NOT_FOUND"),
        lvm::Error::DuplicateName { .. } | lvm::Error::OnVolume { .. } | lvm::Error::UnknownDisk { .. } => {
            (Code::FailedPrecondition, VG_UNREADABLE)
        }
        lvm::Error::ForeignGroup { .. } | lvm::Error::ExportedGroup(_) | lvm::Error::OtherMachine { .. } => {
            (Code::FailedPrecondition, "VG_NOT_OURS")
        }
        // Not UNAVAILABLE: topolvm-node would repeat it, and freeze the filesystems, without a pause
        lvm::Error::ThawedEarly { .. } => (Code::FailedPrecondition, "LV_THAWED_EARLY"),
        lvm::Error::NotFrozen { .. } | lvm::Error::FreezesOnce => (Code::FailedPrecondition, "LV_NOT_FROZEN"),
        lvm::Error::Changed { .. } => (Code::Unavailable, "LV_BEING_MADE"),
        lvm::Error::AlreadyExists(_) => (Code::AlreadyExists, "LV_EXISTS"),
        lvm::Error::NoSpace(_) => (Code::ResourceExhausted, "NO_SPACE"),
        // It is moved to another disk, and is free again in a moment
        lvm::Error::Locked(_) => (Code::Unavailable, "LV_BEING_MOVED"),
        lvm::Error::Busy(_) => (Code::FailedPrecondition, "LV_IN_USE"),
        lvm::Error::Frozen { .. } => (Code::FailedPrecondition, "LV_FROZEN"),
        lvm::Error::Incomplete(_) => (Code::FailedPrecondition, "VG_INCOMPLETE"),
        // CSI: the outcome is not known, ask again.
        lvm::Error::Timeout { .. } => (Code::DeadlineExceeded, "LVM_TIMEOUT"),
        lvm::Error::Run { .. }
        | lvm::Error::Exit { .. }
        | lvm::Error::Report { .. }
        | lvm::Error::PartIsActive { .. }
        | lvm::Error::ThinDeviceExists { .. } => (Code::Internal, "LVM_FAILED"),
    }
}
