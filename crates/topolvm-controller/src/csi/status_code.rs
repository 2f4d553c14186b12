//! The gRPC code of every error that a CSI call can end with, and why the sidecars need just that code.

use tonic::{Code, Status};
use topolvm_runtime::grpc::{GrpcCode, into_status};

use super::operation_locks::OperationPending;
use super::request::RequestError;
use crate::volumes::VolumeError;

impl GrpcCode for RequestError {
    fn code(&self) -> Code {
        match self {
            // external-provisioner waits five minutes after INVALID_ARGUMENT, unless the StorageClass changes: nothing
            // here may be temporary, or true on one node only. It is also the code that CSI demands from a plugin that
            // cannot make volumes from the requested kind of source.
            Self::MissingField(_)
            | Self::NoAccessType
            | Self::UnsupportedAccessMode(_)
            | Self::UnsupportedFilesystem(_)
            | Self::SnapshotsDisabled
            | Self::UnknownMutableParameter(_)
            | Self::NegativeMaxEntries(_)
            | Self::GroupSize(_)
            | Self::RepeatedSource(_)
            | Self::MkfsOptions(_)
            | Self::IoLimit(_)
            | Self::CapacityRange(_)
            | Self::Topology(_) => Code::InvalidArgument,
        }
    }
}

impl GrpcCode for OperationPending {
    /// CSI's code for a second call while the first one runs; the sidecars ask again.
    fn code(&self) -> Code {
        Code::Aborted
    }
}

impl GrpcCode for VolumeError {
    fn code(&self) -> Code {
        match self {
            // The outcome of a change that was sent is unknown, so the caller must retry: with any code that is final
            // to external-provisioner, a volume that was created after all would be lost.
            Self::Api { .. }
            | Self::ClaimUnreadable { .. }
            | Self::NodesNotListed
            | Self::NotPublished(_)
            | Self::VolumesNotListed
            | Self::ShuttingDown => Code::Unavailable,
            // Never changes: a StorageClass and the class of a source are what they are
            Self::InvalidObject { .. }
            // CSI names this code for members of a group, and for lists of members
            | Self::NotInGroup { .. }
            | Self::MissingOfGroup { .. }
            | Self::MemberOfGroup { .. }
            | Self::SourceClassDiffers { .. }
            | Self::SourceFilesystemDiffers { .. }
            | Self::Immutable { .. } => Code::InvalidArgument,
            Self::AlreadyExists { .. } => Code::AlreadyExists,
            // external-provisioner then lets the scheduler choose another node. It does not know the node of a copy's
            // source, and may have chosen a wrong node; CSI names this code for that. After INVALID_ARGUMENT, which
            // TopoLVM answers, the claim would stay with the wrong node forever.
            Self::NoNodeWithClass { .. }
            | Self::InsufficientCapacity { .. }
            | Self::NoSpaceForPod { .. }
            | Self::NoSpaceWithOthers { .. }
            | Self::SourceNotAccessible { .. }
            | Self::NodeBeingDeleted { .. }
            | Self::NodeGone { .. }
            | Self::NodeNotSelected { .. }
            | Self::TopologyLabelShared { .. } => Code::ResourceExhausted,
            // CSI names this code for a volume that is to be smaller than its source
            Self::SmallerThanSource { .. } => Code::OutOfRange,
            Self::CreateFailed { code, is_copy, .. } => create_failure_code(Code::from_i32(*code), *is_copy),
            Self::ExpandFailed { code, .. } => expand_failure_code(Code::from_i32(*code)),
            Self::NotFound { .. } | Self::SourceNotFound { .. } | Self::GroupNotFound { .. } => Code::NotFound,
            // CSI names this code for volumes that cannot be in one group
            Self::GroupOnSeveralNodes { .. } | Self::NotTakenTogether { .. } => Code::FailedPrecondition,
            // For a token CSI names this code; the others are over when the caller asks again
            Self::StillBeingDeleted { .. } | Self::DeletedMeanwhile(_) | Self::InvalidToken(_) => Code::Aborted,
            Self::Timeout { .. } => Code::DeadlineExceeded,
        }
    }
}

/// Returns the code for a volume that its node could not create, from the node's code. Nothing is left of the volume.
fn create_failure_code(code: Code, is_copy: bool) -> Code {
    // The node lacks the device class, its volume group or some of its disks, or the class of lvcreate options;
    // TopoLVM's lvmd returns NOT_FOUND. Other nodes may have them: external-provisioner lets the scheduler choose again
    // after RESOURCE_EXHAUSTED. After the node's own code it would try the same node forever.
    let is_lacking = matches!(code, Code::FailedPrecondition | Code::NotFound);
    if is_lacking && !is_copy { Code::ResourceExhausted } else { code }
}

/// Returns the code for a volume that its node could not expand, from the node's code.
fn expand_failure_code(code: Code) -> Code {
    if code == Code::ResourceExhausted {
        // external-resizer keeps trying the same size after RESOURCE_EXHAUSTED, and the user cannot step back to a
        // smaller one; after OUT_OF_RANGE he can
        Code::OutOfRange
    } else if code == Code::FailedPrecondition {
        // CSI keeps this code for a volume that can grow only while it is unused, and external-resizer then waits until
        // no pod uses it. Here the node reports a problem of its volume group or device class: after a code without
        // special meaning, external-resizer retries with pauses, and the user can reduce the request again.
        Code::Internal
    } else {
        code
    }
}

impl From<RequestError> for Status {
    fn from(error: RequestError) -> Self {
        into_status(error)
    }
}

impl From<VolumeError> for Status {
    fn from(error: VolumeError) -> Self {
        into_status(error)
    }
}

impl From<OperationPending> for Status {
    fn from(error: OperationPending) -> Self {
        into_status(error)
    }
}

/// Returns whether the caller of CreateVolumeGroupSnapshot may not come back after this code, so that nothing of the
/// group may be left. csi-snapshotter comes back after RESOURCE_EXHAUSTED, and other callers may not. After
/// ALREADY_EXISTS the group is another one.
pub(super) fn is_final_for_group(code: Code) -> bool {
    !matches!(code, Code::Unavailable | Code::DeadlineExceeded | Code::Aborted | Code::Cancelled | Code::AlreadyExists)
}

/// Returns UNIMPLEMENTED, for calls that the capabilities do not announce, so that no sidecar makes them.
pub(super) fn unimplemented(call: &str) -> Status {
    Status::unimplemented(format!("{call} is not supported by this driver"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::ApiFailure;

    fn all_but(special: &[Code]) -> impl Iterator<Item = Code> {
        (1..=16).map(Code::from_i32).filter(|code| !special.contains(code))
    }

    fn created(code: Code, is_copy: bool) -> Code {
        VolumeError::CreateFailed { node: String::new(), code: code.into(), message: String::new(), is_copy }.code()
    }

    fn expanded(code: Code) -> Code {
        VolumeError::ExpandFailed { node: String::new(), code: code.into(), message: String::new() }.code()
    }

    #[test]
    fn a_node_that_lacks_what_a_new_volume_needs_means_another_node() {
        for code in [Code::ResourceExhausted, Code::FailedPrecondition, Code::NotFound] {
            assert_eq!(created(code, false), Code::ResourceExhausted);
        }
        for code in all_but(&[Code::FailedPrecondition, Code::NotFound]) {
            assert_eq!(created(code, false), code);
        }
    }

    #[test]
    fn copy_error_code_of_the_node_is_returned_unchanged() {
        for code in all_but(&[]) {
            assert_eq!(created(code, true), code);
        }
    }

    #[test]
    fn expand_error_is_never_failed_precondition_or_exhausted() {
        assert_eq!(expanded(Code::ResourceExhausted), Code::OutOfRange);
        assert_eq!(expanded(Code::FailedPrecondition), Code::Internal);
        for code in all_but(&[Code::ResourceExhausted, Code::FailedPrecondition]) {
            assert_eq!(expanded(code), code);
        }
    }

    #[test]
    fn api_failure_is_one_sentence() {
        let status = kube::core::Status::failure("etcdserver: request timed out", "InternalError").with_code(500);
        let error = VolumeError::Api {
            action: "create",
            name: "pvc-1".to_owned(),
            source: ApiFailure::from(kube::Error::Api(status.boxed())),
        };
        assert_eq!(
            into_status(error).message(),
            "cannot create LogicalVolume pvc-1: etcdserver: request timed out (HTTP 500)"
        );
    }
}
