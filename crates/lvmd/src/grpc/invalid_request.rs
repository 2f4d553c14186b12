//! The errors of requests that are invalid.

use lvm::InvalidName;
use tonic::Code;
use topolvm_runtime::grpc::GrpcCode;

/// The errors of requests that are invalid whatever the state of the node.
#[derive(Debug, thiserror::Error)]
pub(super) enum InvalidRequest {
    #[error(transparent)]
    Name(#[from] InvalidName),
    #[error("invalid size {0}: it must be a positive multiple of 4096 bytes")]
    Size(i64),
    #[error("invalid size {0}: it must not be negative")]
    NegativeSize(i64),
    #[error("invalid access type {0:?}: it must be ro or rw")]
    AccessType(String),
    #[error("invalid tag {0:?}: it is reserved for lvmd")]
    ReservedTag(String),
    #[error("{tags} tags: a request may have at most {most}")]
    TooManyTags { tags: usize, most: usize },
    #[error("tags of {bytes} characters in total: a request may have at most {most}")]
    LongTags { bytes: usize, most: usize },
    #[error("{requested} snapshots of one moment: a request must have 1 to {most}")]
    SnapshotCount { requested: usize, most: usize },
    #[error("invalid snapshot {0:?}: one of a group must be read-only and have the size of its source (0)")]
    SnapshotOfGroup(String),
    #[error("invalid snapshot {0:?}: its name or its source is that of another one of the request")]
    RepeatedSnapshot(String),
    #[error("invalid name {0:?}: it is reserved for lvmd")]
    ReservedName(String),
    #[error("invalid name {0:?}: it must be the UID of an object")]
    NoObjectUid(String),
    #[error("invalid name {0:?}: no volume in quarantine has such a name")]
    NotQuarantined(String),
}

impl GrpcCode for InvalidRequest {
    fn code(&self) -> Code {
        Code::InvalidArgument
    }
}
