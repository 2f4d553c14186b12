//! The nodes on which a volume may be, from the cache of Nodes. The API server is asked for a Node that is not cached,
//! and for labels that the cache does not have.

use std::collections::BTreeMap;

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::{Node, TopologySelectorTerm};
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Client, ResourceExt as _};
use topolvm_kube::{Cache, ReconcileError, list_in_pages, none_if_not_found};
use topolvm_proto::csi::TopologyRequirement;

use crate::error::PrepareError;
use crate::registered_nodes::{RegisteredNodes, Registration};
use crate::topology::{is_allowed, names_other_labels, requirement, spread};

/// The nodes of the cluster.
#[derive(Clone)]
pub(crate) struct NodeTopologies {
    pub(crate) client: Client,
    /// The cache of Nodes, with at least the label of the driver.
    pub(crate) nodes: Cache<PartialObjectMeta<Node>>,
    /// Those where the driver is registered.
    pub(crate) registered: RegisteredNodes,
    pub(crate) driver: String,
    /// The label of the driver, which is the only key of its topology.
    pub(crate) key: String,
}

impl NodeTopologies {
    /// Returns the topology of the node that the scheduler has selected. A volume is nowhere else, so the other nodes
    /// are left out.
    pub(crate) async fn of_selected(
        &self,
        node: &str,
        allowed: &[TopologySelectorTerm],
    ) -> Result<TopologyRequirement, PrepareError> {
        let cached = self.nodes.get(&ObjectRef::new(node)).map(|found| found.labels().clone());
        let labels = match cached {
            Some(labels) if !names_other_labels(allowed, &self.key) => labels,
            // Also one that the watch has yet to show
            _ => self.read_labels(node).await?.ok_or_else(|| PrepareError::NodeGone(node.to_owned()))?,
        };
        self.check_registered(node)?;
        let missing = || PrepareError::NodeWithoutLabel { node: node.to_owned(), key: self.key.clone() };
        let segment = labels.get(&self.key).filter(|value| !value.is_empty()).ok_or_else(missing)?;
        // The StorageClass may name any label: the scheduler has compared all of them
        if !is_allowed(allowed, &labels) {
            return Err(PrepareError::NodeNotAllowed { node: node.to_owned() });
        }
        Ok(requirement(&self.key, std::slice::from_ref(segment)))
    }

    /// Checks that the kubelet of a node has registered the driver. Without it no agent creates the volume.
    fn check_registered(&self, node: &str) -> Result<(), PrepareError> {
        let node = node.to_owned();
        match self.registered.get(&node) {
            Some(Registration::Registered) => Ok(()),
            Some(Registration::Missing) => Err(PrepareError::NodeWithoutDriver { node, driver: self.driver.clone() }),
            None => Err(PrepareError::NodeWithoutCsiNode { node }),
        }
    }

    /// Returns the topologies of all allowed nodes, beginning with another one for each claim.
    pub(crate) async fn of_all(
        &self,
        claim: &str,
        allowed: &[TopologySelectorTerm],
    ) -> Result<TopologyRequirement, PrepareError> {
        let labels: Vec<BTreeMap<String, String>> = if names_other_labels(allowed, &self.key) {
            self.list_labels().await?
        } else {
            self.nodes.state().iter().map(|node| node.labels().clone()).collect()
        };
        let allowed = labels.iter().filter(|labels| is_allowed(allowed, labels));
        let segments = allowed.filter_map(|labels| labels.get(&self.key).filter(|value| !value.is_empty()).cloned());
        let segments = spread(segments.collect(), claim);
        if segments.is_empty() {
            return Err(PrepareError::NoNode { key: self.key.clone() });
        }
        Ok(requirement(&self.key, &segments))
    }

    fn api(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    async fn read_labels(&self, node: &str) -> Result<Option<BTreeMap<String, String>>, ReconcileError> {
        let found = none_if_not_found(self.api().get_metadata(node).await);
        let found = found.map_err(ReconcileError::api("read Node", node))?;
        Ok(found.map(|node| node.labels().clone()))
    }

    async fn list_labels(&self) -> Result<Vec<BTreeMap<String, String>>, ReconcileError> {
        let api: Api<PartialObjectMeta<Node>> = Api::all(self.client.clone());
        let nodes = list_in_pages(&api, ListParams::default()).map_ok(|node| node.labels().clone());
        nodes.try_collect().await.map_err(ReconcileError::api("list", "Nodes"))
    }
}
