//! Finding the LogicalVolume of a CSI volume id among those of this node, and what it says about a filesystem.

mod record;

use std::sync::Arc;
use std::time::Duration;

use kube::{Api, Client};
use tonic::Code;
use topolvm_api::{ApiFlavor, LogicalVolume};
use topolvm_kube::{LogicalVolumes, list_selected};
use topolvm_runtime::grpc::GrpcCode;

pub use record::RecordError;

use crate::reconcile::Events;

/// How long a call waits for the first list of a process that has just started.
const FIRST_LIST: Duration = Duration::from_secs(10);

/// How long the API server may take for a list. The volume is taken until then, and so is the end of the process.
const LIST: Duration = Duration::from_secs(30);

/// The LogicalVolumes of this node.
#[derive(Clone)]
pub struct Volumes {
    flavor: ApiFlavor,
    own: LogicalVolumes,
    api: Api<LogicalVolume>,
    events: Events,
    node: String,
}

impl std::fmt::Debug for Volumes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volumes").field("node", &self.node).finish_non_exhaustive()
    }
}

/// Why a volume cannot be found.
#[derive(Debug, thiserror::Error)]
pub enum LookupError {
    /// There is no such volume on this node.
    #[error("volume {id} is not known on node {node}")]
    Unknown {
        /// The CSI volume id.
        id: String,
        /// This node.
        node: String,
    },
    /// Nobody knows, because the API server does not answer.
    #[error("cannot look up volume {id}, because the Kubernetes API server does not answer")]
    Api {
        /// The CSI volume id.
        id: String,
        /// What came back.
        source: Box<kube::Error>,
    },
    /// Nobody knows, because the API server takes too long.
    #[error("cannot look up volume {id}, because the Kubernetes API server did not answer within {} s", LIST.as_secs())]
    SlowApi {
        /// The CSI volume id.
        id: String,
    },
    /// Nobody knows yet.
    #[error("the LogicalVolumes of this node have not been listed yet; is the Kubernetes API server reachable?")]
    NotListed,
}

impl GrpcCode for LookupError {
    fn code(&self) -> Code {
        match self {
            Self::Unknown { .. } => Code::NotFound,
            Self::Api { .. } | Self::SlowApi { .. } | Self::NotListed => Code::Unavailable,
        }
    }
}

impl Volumes {
    /// Volumes among this node's objects as the watch shows them, and from the API server where the watch may lag behind.
    pub fn new(flavor: ApiFlavor, own: LogicalVolumes, client: Client, node: String) -> Self {
        let events = Events::new(flavor, &node, client.clone());
        Self { flavor, own, api: Api::all_with(client, &flavor), events, node }
    }

    /// The LogicalVolume of a CSI volume id, which is the object's UID.
    pub async fn find(&self, id: &str) -> Result<LogicalVolume, LookupError> {
        if !tokio::time::timeout(FIRST_LIST, self.own.wait_until_listed()).await.unwrap_or(false) {
            return Err(LookupError::NotListed);
        }
        if let Some(volume) = self.own.find(id) {
            return Ok(Arc::unwrap_or_clone(volume));
        }
        // Another process of this agent, as during an update, can have made the volume a moment ago
        let fields = format!("spec.nodeName={},status.volumeID={id}", self.node);
        let is_claiming = |volume: &LogicalVolume| volume.volume_id() == Some(id) && volume.spec.node_name == self.node;
        let claiming = tokio::time::timeout(LIST, list_selected(&self.api, &fields, is_claiming))
            .await
            .map_err(|_| LookupError::SlowApi { id: id.to_owned() })?
            .map_err(|source| LookupError::Api { id: id.to_owned(), source: Box::new(source) })?;
        claiming
            .into_iter()
            // Of several that claim it, the one whose UID it is
            .max_by_key(|volume| volume.uid() == id)
            .ok_or_else(|| LookupError::Unknown { id: id.to_owned(), node: self.node.clone() })
    }

    /// Whether all were listed and there is no such volume. Asks nobody.
    pub fn is_surely_unknown(&self, id: &str) -> bool {
        self.own.is_listed() && self.own.find(id).is_none()
    }
}
