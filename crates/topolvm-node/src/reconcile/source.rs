//! Finds the source of a snapshot, restored volume or clone.

use tonic::Code;
use topolvm_api::{AccessType, LogicalVolume};
use topolvm_runtime::grpc::GrpcCode;

use super::ReconcileError;
use super::creation::Creation;
use super::object_writer::with_deadline;

/// Source of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Source {
    /// Name of the source in LVM.
    pub(super) lv: String,
    /// Access type of the copy.
    pub(super) access: AccessType,
}

/// Final error of a source: as long as the object is unchanged, a retry gives the same.
#[derive(Debug, thiserror::Error)]
pub(super) enum SourceError {
    /// The access type is neither `ro` nor `rw`.
    #[error("accessType {0:?} of the LogicalVolume is neither \"ro\" nor \"rw\"")]
    AccessType(String),
    /// The source does not exist.
    #[error("the source, LogicalVolume {0}, does not exist")]
    Missing(String),
    /// The source is on another node. LVM copies within a thin pool only.
    #[error(
        "the source, LogicalVolume {name}, is on node {node}; a copy can only be created on the node of its source"
    )]
    Elsewhere {
        /// Name of the source.
        name: String,
        /// Node of the source.
        node: String,
    },
    /// The source could not be created.
    #[error("the source, LogicalVolume {0}, has no volume, because its creation failed")]
    Failed(String),
}

impl GrpcCode for SourceError {
    fn code(&self) -> Code {
        match self {
            Self::AccessType(_) => Code::InvalidArgument,
            Self::Missing(_) => Code::NotFound,
            Self::Elsewhere { .. } | Self::Failed(_) => Code::FailedPrecondition,
        }
    }
}

impl Creation {
    /// Finds the source of a volume; `None` for one that begins empty. lvmd checks the sizes, because only lvmd changes
    /// the source meanwhile.
    pub(super) async fn find_source(
        &self,
        volume: &LogicalVolume,
    ) -> Result<Result<Option<Source>, SourceError>, ReconcileError> {
        let source = volume.spec.source.as_str();
        if source.is_empty() {
            return Ok(Ok(None));
        }
        let Some(access) = AccessType::parse(&volume.spec.access_type) else {
            return Ok(Err(SourceError::AccessType(volume.spec.access_type.clone())));
        };
        // Asked for and not taken from the store, where the source may not have arrived yet
        let Some(object) = with_deadline("look up the source", self.clients.api.get_opt(source)).await? else {
            return Ok(Err(SourceError::Missing(source.to_owned())));
        };
        if object.spec.node_name != self.clients.node {
            return Ok(Err(SourceError::Elsewhere { name: source.to_owned(), node: object.spec.node_name }));
        }
        match object.volume_id() {
            Some(lv) => Ok(Ok(Some(Source { lv: lv.to_owned(), access }))),
            None if object.failure().is_some() => Ok(Err(SourceError::Failed(source.to_owned()))),
            None => Err(ReconcileError::SourceNotReady(source.to_owned())),
        }
    }
}
