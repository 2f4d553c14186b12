//! Asks the API server, and never a cache, what it knows of LVs without an object.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use topolvm_api::{ApiFlavor, LogicalVolume};
use topolvm_kube::api_server::{ApiError, DEADLINE, call};
use topolvm_kube::{ClusterIdentity, VolumeReferences, list_selected};

use crate::candidate::Candidate;

/// The API server, for questions whose answers are proofs.
#[derive(Debug)]
pub(crate) struct Server {
    flavor: ApiFlavor,
    node: String,
    volumes: Api<LogicalVolume>,
    nodes: Api<Node>,
    /// The objects that refer to volumes.
    pub(crate) references: VolumeReferences,
    cluster: ClusterIdentity,
}

/// Knowledge of the API server.
#[derive(Clone, Debug)]
pub(crate) struct ServerState {
    /// UID of the namespace kube-system.
    pub(crate) cluster: String,
    /// Number of LogicalVolumes of the node.
    pub(crate) objects: usize,
    /// Time of creation of the newest LogicalVolume of the node that it has known for certain, in seconds since 1970.
    pub(crate) remembers_until: Option<i64>,
}

/// State of the object of an LV.
#[derive(Clone, Debug, Default)]
pub(crate) enum ObjectState {
    /// There is none with this UID.
    #[default]
    Gone,
    /// It exists.
    Exists(Arc<LogicalVolume>),
    /// There is another one of its name, which has no volume and waits for an administrator.
    Waits,
}

impl Server {
    /// Makes the API server of the agent of `node`.
    pub(crate) fn new(flavor: ApiFlavor, node: &str, cluster: ClusterIdentity, client: Client) -> Self {
        Self {
            flavor,
            node: node.to_owned(),
            volumes: Api::all_with(client.clone(), &flavor),
            nodes: Api::all(client.clone()),
            references: VolumeReferences::new(flavor, client),
            cluster,
        }
    }

    /// Reads the Node; `None` if there is none. The agent may list Nodes, to watch its own, and not get them.
    pub(crate) async fn read_node(&self) -> Result<Option<PartialObjectMeta<Node>>, ApiError> {
        let params = ListParams::default().fields(&format!("metadata.name={}", self.node));
        Ok(call(DEADLINE, self.nodes.list_metadata(&params)).await?.items.into_iter().next())
    }

    /// Reads the API server's state in addition to the Node.
    pub(crate) async fn read_state(&self, node: &PartialObjectMeta<Node>) -> Result<ServerState, ApiError> {
        let fields = format!("spec.nodeName={}", self.node);
        let is_own = |volume: &LogicalVolume| volume.spec.node_name == self.node;
        Ok(ServerState {
            cluster: self.cluster.read_uid().await?,
            objects: call(DEADLINE, list_selected(&self.volumes, &fields, is_own)).await?.len(),
            remembers_until: remembers_until(self.flavor, node),
        })
    }

    /// Gets the object that an LV was created for. An object with another UID is a different one, unless its status
    /// names the LV: then a backup tool has restored it.
    pub(crate) async fn find_object(&self, candidate: &Candidate) -> Result<ObjectState, ApiError> {
        let Some(name) = &candidate.object else { return Ok(ObjectState::Gone) };
        Ok(match call(DEADLINE, self.volumes.get_opt(name)).await? {
            Some(found) if found.uid() == candidate.uid || found.volume_id() == Some(&candidate.uid) => {
                ObjectState::Exists(Arc::new(found))
            }
            Some(found) if found.volume_id().is_none() => ObjectState::Waits,
            Some(_) | None => ObjectState::Gone,
        })
    }

    /// Writes an annotation of the Node, or takes it away.
    pub(crate) async fn annotate_node(&self, key: &str, value: Option<&str>) -> Result<(), ApiError> {
        let patch = Patch::Merge(json!({"metadata": {"annotations": {key: value}}}));
        call(DEADLINE, self.nodes.patch_metadata(&self.node, &PatchParams::default(), &patch)).await.map(drop)
    }
}

/// Returns the time of creation of the newest LogicalVolume that the API server has known for certain.
pub(crate) fn remembers_until(flavor: ApiFlavor, node: &PartialObjectMeta<Node>) -> Option<i64> {
    let written = node.annotations().get(flavor.volumes_until())?;
    written.parse::<Timestamp>().ok().map(Timestamp::as_second)
}
