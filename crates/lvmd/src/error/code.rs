//! Decides the gRPC code of each error. docs/errors.md says what each code makes the CSI sidecars do.

use tonic::Code;
use topolvm_runtime::grpc::{GrpcCode, Reason};

use super::{Error, InvalidRequest, reason};

impl GrpcCode for Error {
    fn code(&self) -> Code {
        match self {
            // topolvm-node takes NotFound from RemoveLV for "it is gone" and forgets the volume. So this code means
            // that LVM listed the group without the volume, and never that a class or a group is missing.
            Self::VolumeNotFound { .. } => Code::NotFound,
            Self::UnknownDeviceClass(_)
            | Self::UnknownOptionClass(_)
            | Self::VolumeGroupMissing(_)
            | Self::PhysicalVolumesMissing { .. }
            | Self::ThinPoolMissing { .. }
            | Self::PoolDoesNotZero { .. }
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
