//! The gRPC code of every error that a call of the Node service can end with.

use linux_mount::MountError;
use tonic::{Code, Status};
use topolvm_runtime::grpc::{GrpcCode, into_status};

use super::error::{CsiError, RequestError};
use super::probe::ProbeError;
use crate::volumes::{LookupError, RecordError};

impl GrpcCode for RequestError {
    fn code(&self) -> Code {
        match self {
            // CSI: a volume capability that this node cannot provide
            Self::AccessMode(_) => Code::FailedPrecondition,
            Self::Missing(_)
            | Self::RelativePath { .. }
            | Self::Filesystem(_)
            | Self::Options(_)
            | Self::MkfsOptions(_)
            | Self::CapacityRange { .. } => Code::InvalidArgument,
        }
    }
}

impl GrpcCode for CsiError {
    fn code(&self) -> Code {
        match self {
            Self::Request(error) => error.code(),
            Self::Lookup(error) | Self::ObjectGone { error, .. } | Self::NeitherObjectNorLv(error) => error.code(),
            Self::Record(error) => error.code(),
            Self::Lvmd(error) => error.code(),
            Self::Mount(error) => mount_code(error),
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
            | Self::DeviceNotVisible(_)
            | Self::NoStagingPath(_)
            | Self::NotStaged { .. }
            | Self::GrowReadOnly(_)
            | Self::TooSmall { .. } => Code::FailedPrecondition,
            Self::CannotGrow { .. } => Code::Unimplemented,
            Self::ConditionUnknown { .. } => Code::DeadlineExceeded,
            Self::BrokenOff(_) => Code::Internal,
        }
    }
}

/// Returns the CSI code of an error of a mount, a device or a program; `linux-mount` knows no CSI.
const fn mount_code(error: &MountError) -> Code {
    match error {
        MountError::NoDevice(_)
        | MountError::WrongDevice { .. }
        | MountError::Damaged { .. }
        | MountError::SameIdentity { .. }
        | MountError::Busy { .. }
        | MountError::Held { .. }
        | MountError::NotShared(_)
        | MountError::NotVisible(_) => Code::FailedPrecondition,
        MountError::TooSlow { .. } | MountError::Hung { .. } => Code::DeadlineExceeded,
        // Kubelet would not try a growth again before the pod ends that FailedPrecondition answers
        MountError::Frozen { .. } => Code::Unavailable,
        MountError::Io { .. }
        | MountError::Table(_)
        | MountError::NotABlockDevice(_)
        | MountError::NoTool(_)
        | MountError::Spawn { .. }
        | MountError::Failed { .. }
        | MountError::Killed { .. }
        | MountError::Superblock { .. } => Code::Internal,
    }
}

impl GrpcCode for LookupError {
    fn code(&self) -> Code {
        match self {
            Self::Unknown { .. } => Code::NotFound,
            Self::Api { .. } | Self::NotListed => Code::Unavailable,
        }
    }
}

impl GrpcCode for RecordError {
    fn code(&self) -> Code {
        Code::Unavailable
    }
}

impl GrpcCode for ProbeError {
    fn code(&self) -> Code {
        match self {
            // CSI's code for "not healthy" in Probe
            Self::Lvmd(_) | Self::Credentials(_) | Self::Api(_) => Code::FailedPrecondition,
        }
    }
}

impl From<RequestError> for Status {
    fn from(error: RequestError) -> Self {
        into_status(error)
    }
}

impl From<CsiError> for Status {
    fn from(error: CsiError) -> Self {
        into_status(error)
    }
}

impl From<ProbeError> for Status {
    fn from(error: ProbeError) -> Self {
        into_status(error)
    }
}
