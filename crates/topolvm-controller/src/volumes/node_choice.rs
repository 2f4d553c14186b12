//! Chooses the node of a new volume: the one that the scheduler has selected, else one with enough free space,
//! according to the strategy.
//!
//! The published capacity is a moment old, and a node itself knows its free space better. So a node that the scheduler
//! has selected is tried whatever it publishes. Space that is reserved for other volumes is not free; space that is
//! reserved for this one is.

use tokio::time::Instant;
use topolvm_api::NodeStrategy;
use topolvm_capacity::{Capacity, FreeNode};

use super::node_strategy::preferred_node;
use super::{Placement, VolumeError, VolumeObjects, VolumeRequest};
use crate::node_informer::NodeInformer;
use crate::pod_claims::PodClaims;

/// Chooses the nodes of new volumes, and reserves space on them.
#[derive(Clone)]
pub(crate) struct NodeChoice {
    pub(crate) objects: VolumeObjects,
    pub(crate) nodes: NodeInformer,
    /// The free bytes of the nodes after reservations.
    pub(crate) capacity: Capacity,
    /// The strategy by which a node is preferred where none was selected; `None` is the order of the request.
    pub(crate) node_strategy: Option<NodeStrategy>,
    /// The pods that wait for several volumes.
    pub(crate) pods: PodClaims,
}

impl NodeChoice {
    /// Chooses the node on which a new volume is created.
    pub(super) async fn choose_node(&self, request: &VolumeRequest, deadline: Instant) -> Result<String, VolumeError> {
        // external-provisioner may still ask for a Node that was deleted: it knows the topology from before
        self.wait_nodes_listed(deadline).await?;
        match &request.placement {
            Placement::Nodes { first, others } if others.is_empty() => self.refuse_closed_node(first),
            Placement::Nodes { first, others } => match self.node_with_capacity(request, first, others)? {
                node if node == *first => Ok(node),
                other => match self.narrow_to_selected_node(request).await? {
                    Placement::Nodes { first, others } if others.is_empty() => self.refuse_closed_node(&first),
                    Placement::Nodes { .. } | Placement::Anywhere => Ok(other),
                },
            },
            Placement::Anywhere => self.refuse_closed_node(&self.node_of_cluster(request)?),
        }
    }

    /// Waits until all Nodes have been listed.
    async fn wait_nodes_listed(&self, deadline: Instant) -> Result<(), VolumeError> {
        match tokio::time::timeout_at(deadline, self.nodes.cache.wait_until_listed()).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(VolumeError::ShuttingDown),
            Err(_elapsed) => Err(VolumeError::NodesNotListed),
        }
    }

    /// Refuses a node that is deleted or is being deleted, that is not selected any more, or whose topology label
    /// another one has.
    fn refuse_closed_node(&self, node: &str) -> Result<String, VolumeError> {
        let node = node.to_owned();
        if !self.nodes.exists(&node) {
            return Err(VolumeError::NodeGone { node });
        }
        if self.nodes.is_being_deleted(&node) {
            return Err(VolumeError::NodeBeingDeleted { node });
        }
        if self.nodes.takes_no_volumes(&node) {
            return Err(VolumeError::NodeNotSelected { node });
        }
        match self.nodes.find_impostors().remove(&node) {
            Some(impostor) => {
                Err(VolumeError::TopologyLabelShared { node, impostor, key: self.objects.flavor.topology_key() })
            }
            None => Ok(node),
        }
    }

    /// Returns the node of these that has enough free space, and that the strategy prefers; if none has, the first,
    /// whose error then contains the reason. external-provisioner sends all nodes in the same order in each request for
    /// a claim that is bound immediately: if this always returned the first, a full node would keep the claim forever.
    fn node_with_capacity(
        &self,
        request: &VolumeRequest,
        first: &str,
        others: &[String],
    ) -> Result<String, VolumeError> {
        let (own, classes) = (self.capacity.exempt_volume(&request.name), request.classes());
        let free = |node: &str| self.capacity.free_bytes(node, &classes, &own).unwrap_or(0);
        let impostors = self.nodes.find_impostors();
        let mut candidates = std::iter::once(first)
            .chain(others.iter().map(String::as_str))
            .filter(|node| self.nodes.exists(node) && !self.nodes.is_being_deleted(node))
            .filter(|node| !self.nodes.takes_no_volumes(node))
            .filter(|node| !impostors.contains_key(*node))
            .peekable();
        let preferred = candidates.peek().copied();
        let with_free_bytes = candidates.map(|node| (node, free(node)));
        match preferred_node(self.node_strategy, with_free_bytes, request.size.bytes).or(preferred) {
            Some(node) => Ok(node.to_owned()),
            None => self.refuse_closed_node(first),
        }
    }

    /// Returns the node of the cluster that has enough free space, and that the strategy prefers; without one the
    /// emptiest.
    fn node_of_cluster(&self, request: &VolumeRequest) -> Result<String, VolumeError> {
        let (device_class, wanted) = (request.device_class.clone(), request.size.bytes);
        let nodes = self.capacity.free_nodes(&request.classes(), &self.capacity.exempt_volume(&request.name));
        let prefer =
            |strategy, wanted| preferred_node(Some(strategy), nodes.iter().map(|node| (node, node.free)), wanted);
        if let Some(node) = prefer(self.node_strategy.unwrap_or_default(), wanted) {
            return Ok(node.name.clone());
        }
        match prefer(NodeStrategy::Spread, 0).cloned() {
            Some(FreeNode { name: node, free }) => {
                Err(VolumeError::InsufficientCapacity { device_class, wanted, node, free })
            }
            None => Err(VolumeError::NoNodeWithClass { device_class }),
        }
    }
}
