//! Maintains the label of nodes that have volumes, and cleans nodes that have lost their selecting label and their last
//! volume.
//!
//! The label keeps the agent and lvmd on the node, whose DaemonSets also select by it. It is added early, while the
//! node is selected, so that no volume is without its agent when an administrator removes the selecting label. Once the
//! label is gone, the agent writes nothing to its Node any more, and the controller removes what the agent had written.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use json_patch::PatchOperation;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ObjectMeta, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use topolvm_api::{ApiFlavor, HAS_VOLUMES_LABEL, LogicalVolume, NodeState};
use topolvm_capacity::NodeMeta;
use topolvm_kube::{ReconcileError, has_finalizer, json_patch, list_selected, none_if_not_found, remove_finalizers};
use topolvm_runtime::{Backoff, error_chain};

use super::Controllers;

/// Back-off after a failed write.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));

/// The controller of node labels.
pub(super) struct NodeLabels {
    pub(super) shared: Controllers,
}

/// A change that a Node needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// The label is to be added.
    Label,
    /// The label is to be removed.
    Unlabel,
    /// Everything that the agent has written is to be removed.
    Clean,
}

impl NodeLabels {
    /// Runs for as long as Nodes and volumes are watched. Where nodes are not selected by labels there is nothing to
    /// do.
    pub(super) async fn run(self) {
        let Controllers { nodes, volumes, .. } = &self.shared;
        if nodes.selection.is_everything() {
            return;
        }
        let (mut node_changes, mut volume_changes) = (nodes.changes(), volumes.changes());
        if !(nodes.cache.wait_until_listed().await && volumes.cache.wait_until_listed().await) {
            return;
        }
        let mut backoff = BACKOFF;
        loop {
            let pause = if self.reconcile_all().await {
                backoff.reset();
                None
            } else {
                Some(backoff.fail())
            };
            let retry = async {
                match pause {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => std::future::pending().await,
                }
            };
            let goes_on = tokio::select! {
                changed = node_changes.changed() => changed.is_ok(),
                changed = volume_changes.changed() => changed.is_ok(),
                () = retry => true,
            };
            if !goes_on {
                return;
            }
        }
    }

    /// Brings all Nodes into their state. Returns whether nothing failed.
    async fn reconcile_all(&self) -> bool {
        let volumes = self.shared.volumes.cache.state();
        let used: HashSet<&str> = volumes.iter().map(|volume| volume.spec.node_name.as_str()).collect();
        let mut is_done = true;
        for node in self.shared.nodes.cache.state() {
            let state = self.shared.nodes.selection.state(node.metadata.labels.as_ref());
            let has_volumes = used.contains(node.name_any().as_str());
            let Some(change) = needed_change(self.shared.flavor, state, has_volumes, &node.metadata) else { continue };
            if let Err(error) = self.shared.metrics.observe("nodelabels", self.make(change, &node)).await {
                let (node, error) = (node.name_any(), error_chain(&error));
                tracing::warn!(node, ?change, error, "cannot change the label or finalizer of a Node; trying again");
                is_done = false;
            }
        }
        is_done
    }

    async fn make(&self, change: Change, node: &Arc<NodeMeta>) -> Result<(), ReconcileError> {
        let name = node.name_any();
        let nodes: Api<Node> = Api::all(self.shared.client.clone());
        if change != Change::Label && self.has_volumes(&name).await? {
            // The watch is behind; it will show them
            return Ok(());
        }
        let patch = match change {
            Change::Label => label_patch(Some(HAS_VOLUMES_LABEL.1)),
            Change::Unlabel => label_patch(None),
            Change::Clean => {
                let found = nodes.get_metadata_opt(&name).await.map_err(ReconcileError::api("read Node", &name))?;
                let Some(found) = found else { return Ok(()) };
                // It may have been selected since
                if self.shared.nodes.selection.state(found.metadata.labels.as_ref()) != NodeState::Excluded {
                    return Ok(());
                }
                return self.clean(&nodes, &name, &found.metadata).await;
            }
        };
        let written = nodes.patch_metadata(&name, &PatchParams::default(), &patch).await;
        none_if_not_found(written).map_err(ReconcileError::api("label Node", &name))?;
        tracing::info!(node = name, ?change, "changed the label that marks a Node with volumes");
        Ok(())
    }

    /// Takes annotations, label and finalizer off a Node.
    async fn clean(&self, nodes: &Api<Node>, name: &str, found: &ObjectMeta) -> Result<(), ReconcileError> {
        let marks = marks_patch(self.shared.flavor, found);
        let written = nodes.patch_metadata(name, &PatchParams::default(), &marks).await;
        none_if_not_found(written).map_err(ReconcileError::api("clean up Node", name))?;
        let finalizer: Vec<PatchOperation> = remove_finalizers(found, &[self.shared.flavor.node_finalizer()]);
        if !finalizer.is_empty() {
            let written = nodes.patch_metadata(name, &PatchParams::default(), &json_patch(finalizer)).await;
            none_if_not_found(written).map_err(ReconcileError::api("remove the finalizer from Node", name))?;
        }
        tracing::info!(node = name, "a Node that is not selected has no more volumes; removed its label and finalizer");
        Ok(())
    }

    /// Asks the API server whether a node has volumes.
    async fn has_volumes(&self, node: &str) -> Result<bool, ReconcileError> {
        let api: Api<LogicalVolume> = Api::all_with(self.shared.client.clone(), &self.shared.flavor);
        let is_here = |volume: &LogicalVolume| volume.spec.node_name == node;
        let listed = list_selected(&api, &format!("spec.nodeName={node}"), is_here).await;
        let volumes = listed.map_err(ReconcileError::api("list the LogicalVolumes of Node", node))?;
        Ok(!volumes.is_empty())
    }
}

/// Returns the change that a Node in this state needs next.
fn needed_change(flavor: ApiFlavor, state: NodeState, has_volumes: bool, node: &ObjectMeta) -> Option<Change> {
    let labels = node.labels.as_ref();
    let label = labels.and_then(|labels| labels.get(HAS_VOLUMES_LABEL.0));
    let has_label = label.is_some_and(|value| value == HAS_VOLUMES_LABEL.1);
    let has_topology_label = labels.is_some_and(|labels| labels.contains_key(flavor.topology_key()));
    let has_marks = has_finalizer(node, flavor.node_finalizer()) || has_topology_label || node.annotations.is_some();
    match (state, has_volumes) {
        // What is deleted is not held any longer
        _ if node.deletion_timestamp.is_some() => None,
        (_, true) => (!has_label).then_some(Change::Label),
        (_, false) if label.is_some() => Some(Change::Unlabel),
        (NodeState::Excluded, false) => has_marks.then_some(Change::Clean),
        (NodeState::Selected | NodeState::Retained, false) => None,
    }
}

fn label_patch(value: Option<&str>) -> Patch<Value> {
    Patch::Merge(json!({ "metadata": { "labels": { HAS_VOLUMES_LABEL.0: value } } }))
}

/// Returns a merge patch that removes the capacity annotations, and the label that kubelet leaves.
fn marks_patch(flavor: ApiFlavor, node: &ObjectMeta) -> Patch<Value> {
    let none = BTreeMap::new();
    let annotations = node.annotations.as_ref().unwrap_or(&none).keys();
    let annotations =
        annotations.filter(|key| flavor.is_capacity_annotation(key)).map(|key| (key.clone(), Value::Null));
    let annotations: serde_json::Map<_, _> = annotations.collect();
    let labels = json!({ flavor.topology_key(): null });
    Patch::Merge(json!({ "metadata": { "annotations": annotations, "labels": labels } }))
}

#[cfg(test)]
mod tests;
