//! Finds what a snapshot, restore or clone is made from.

use tonic::Code;
use topolvm_api::{AccessType, LogicalVolume};
use topolvm_runtime::grpc::GrpcCode;

use super::status::within;
use super::{Error, Reconciler};

/// What a volume is made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Source {
    /// Its name in LVM.
    pub(super) lv: String,
    /// How the copy may be used.
    pub(super) access: AccessType,
}

/// Why a volume can never be made from its source. Asking again, as this object stands, gives the same answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoSource {
    /// Neither `ro` nor `rw`.
    #[error("accessType {0:?} of the LogicalVolume is neither \"ro\" nor \"rw\"")]
    AccessType(String),
    /// There is no such object.
    #[error("the source, LogicalVolume {0}, does not exist")]
    Missing(String),
    /// LVM copies within a thin pool only.
    #[error("the source, LogicalVolume {name}, is on node {node}; a copy can only be made on the node of its source")]
    Elsewhere {
        /// The source.
        name: String,
        /// Its node.
        node: String,
    },
    /// Its own volume could not be made.
    #[error("the source, LogicalVolume {0}, has no volume, because it could not be made")]
    Failed(String),
}

impl GrpcCode for NoSource {
    fn code(&self) -> Code {
        match self {
            Self::AccessType(_) => Code::InvalidArgument,
            Self::Missing(_) => Code::NotFound,
            Self::Elsewhere { .. } | Self::Failed(_) => Code::FailedPrecondition,
        }
    }
}

impl Reconciler {
    /// What the volume is to be made from; `None` for one that begins empty. Whether the sizes fit is lvmd's to say: it
    /// looks while nobody else can change the source.
    pub(super) async fn source(&self, volume: &LogicalVolume) -> Result<Result<Option<Source>, NoSource>, Error> {
        let source = volume.spec.source.as_str();
        if source.is_empty() {
            return Ok(Ok(None));
        }
        let Some(access) = AccessType::parse(&volume.spec.access_type) else {
            return Ok(Err(NoSource::AccessType(volume.spec.access_type.clone())));
        };
        // Asked for and not taken from the store, where the source may not have arrived yet
        let Some(object) = within("look up the source", self.api.get_opt(source)).await? else {
            return Ok(Err(NoSource::Missing(source.to_owned())));
        };
        if object.spec.node_name != self.node {
            return Ok(Err(NoSource::Elsewhere { name: source.to_owned(), node: object.spec.node_name }));
        }
        match object.volume_id() {
            Some(lv) => Ok(Ok(Some(Source { lv: lv.to_owned(), access }))),
            None if object.failure().is_some() => Ok(Err(NoSource::Failed(source.to_owned()))),
            None => Err(Error::SourceNotReady(source.to_owned())),
        }
    }
}
