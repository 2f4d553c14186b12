//! Finds the LogicalVolume of a CSI volume id among those of this node, and keeps the record of its filesystem.

mod filesystem_record;

use std::sync::Arc;
use std::time::Duration;

use kube::{Api, Client};
use topolvm_api::{ApiFlavor, LogicalVolume};
use topolvm_kube::api_server::{self, ApiError, DEADLINE};
use topolvm_kube::{LogicalVolumes, list_selected};

use crate::events::Events;

/// Deadline for the first list of a process that has just started; a call waits until then.
const FIRST_LIST_DEADLINE: Duration = Duration::from_secs(10);

/// LogicalVolumes of this node, by CSI volume id.
#[derive(Clone, Debug)]
pub struct Volumes {
    pub(crate) flavor: ApiFlavor,
    pub(crate) own: LogicalVolumes,
    api: Api<LogicalVolume>,
    pub(crate) events: Events,
    pub(crate) node: String,
}

/// Error of the lookup of a volume.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LookupError {
    /// No such volume is on this node.
    #[error("volume {id} not found on node {node}")]
    Unknown { id: String, node: String },
    /// The API server answered with an error, or not at all.
    #[error("cannot look up volume {id}, because the Kubernetes API server does not answer")]
    Api { id: String, source: ApiError },
    /// The objects have not been listed yet.
    #[error(
        "topolvm-node has not listed the LogicalVolumes of this node yet; check that the Kubernetes API server is \
         reachable"
    )]
    NotListed,
}

/// Error of writing the record of a filesystem. The call that needs it fails; when it is repeated, it finds the
/// filesystem.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot record on LogicalVolume {name} that its volume has a filesystem; without this record topolvm-node could \
     not detect the loss of the filesystem later"
)]
pub(crate) struct RecordError {
    name: String,
    source: ApiError,
}

impl Volumes {
    /// Makes a lookup in `own`, which a watch keeps, and in the API server where the watch may lag behind.
    pub fn new(flavor: ApiFlavor, own: LogicalVolumes, client: Client, node: String) -> Self {
        let events = Events::new(flavor, &node, client.clone());
        Self { flavor, own, api: Api::all_with(client, &flavor), events, node }
    }

    /// Finds the LogicalVolume of a CSI volume id, which is the UID of the object.
    pub(crate) async fn find(&self, id: &str) -> Result<LogicalVolume, LookupError> {
        if !tokio::time::timeout(FIRST_LIST_DEADLINE, self.own.wait_until_listed()).await.unwrap_or(false) {
            return Err(LookupError::NotListed);
        }
        if let Some(volume) = self.own.find(id) {
            return Ok(Arc::unwrap_or_clone(volume));
        }
        // Another process of this agent, as during an update, can have made the volume a moment ago
        let fields = format!("spec.nodeName={},status.volumeID={id}", self.node);
        let is_claiming = |volume: &LogicalVolume| volume.volume_id() == Some(id) && volume.spec.node_name == self.node;
        let claiming = api_server::call(DEADLINE, list_selected(&self.api, &fields, is_claiming))
            .await
            .map_err(|source| LookupError::Api { id: id.to_owned(), source })?;
        claiming
            .into_iter()
            // Of several that claim it, the one whose UID it is
            .max_by_key(|volume| volume.uid() == id)
            .ok_or_else(|| LookupError::Unknown { id: id.to_owned(), node: self.node.clone() })
    }

    /// Returns whether the objects were listed and none has this volume id. Makes no call.
    pub(crate) fn is_known_to_be_absent(&self, id: &str) -> bool {
        self.own.is_listed() && self.own.find(id).is_none()
    }
}
