//! Deletes a Node object while its machine is off, and registers the machine again: the claims whose volumes are on it
//! are deleted, and no others. Their LVs stay on its disks until an administrator removes them
//! (docs/node-maintenance.md).

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use testbed::node::Node;
use testbed::topolvm::{self, NODE, TopolvmSpec};

use super::disturb::DisturbedNodes;
use super::fields::{find_by_name, find_by_volume_id, text};
use super::history::{EVENTS, Fact};
use super::state::State;
use super::workload::Workload;

/// Claims, snapshots and LVs with their volumes on a node.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct NodeVolumes {
    pub(super) claims: Vec<String>,
    pub(super) snapshots: Vec<String>,
    /// Names of all LVs of the node.
    lvs: BTreeSet<String>,
    /// Claims whose volumes are on other nodes.
    others: Vec<String>,
}

impl NodeVolumes {
    fn find(node: &str, state: &State) -> Self {
        let is_here = |handle: &str| {
            find_by_volume_id(&state.objects, handle).is_some_and(|object| text(object, "/spec/nodeName") == node)
        };
        let claim_is_here = |claim: &Value| {
            let volume = find_by_name(&state.volumes, text(claim, "/spec/volumeName"));
            volume.is_some_and(|volume| is_here(text(volume, "/spec/csi/volumeHandle")))
        };
        let snapshot_is_here = |snapshot: &Value| {
            let content = find_by_name(&state.contents, text(snapshot, "/status/boundVolumeSnapshotContentName"));
            content.is_some_and(|content| is_here(text(content, "/status/snapshotHandle")))
        };
        let name = |object: &Value| text(object, "/metadata/name").to_owned();
        let (here, elsewhere): (Vec<&Value>, Vec<&Value>) = state.claims.iter().partition(|claim| claim_is_here(claim));
        let lvs = state.nodes.iter().filter(|state| state.name == node).flat_map(|state| &state.lvm);
        Self {
            claims: here.into_iter().map(name).collect(),
            snapshots: state.snapshots.iter().filter(|snapshot| snapshot_is_here(snapshot)).map(name).collect(),
            lvs: lvs.map(|lv| lv.name.clone()).collect(),
            others: elsewhere.into_iter().map(name).collect(),
        }
    }
}

impl DisturbedNodes<'_> {
    /// Deletes the Node and registers it again. Returns the claims and snapshots that were deleted with it; the
    /// workloads of the node have been created again.
    pub(super) fn delete_node(&self, number: usize, spec: &TopolvmSpec) -> Result<NodeVolumes> {
        let node = self.node(number)?;
        self.history.record(EVENTS, Fact::Disturbed(format!("{} is deleted", node.name())));
        let volumes = self.delete_node_and_wait(node).with_context(|| format!("delete {}", node.name()))?;
        self.register_again(node, spec).with_context(|| format!("register {} again", node.name()))?;
        self.history.record(EVENTS, Fact::Restored);
        Ok(volumes)
    }

    fn delete_node_and_wait(&self, node: &Node) -> Result<NodeVolumes> {
        let volumes = NodeVolumes::find(node.name(), &State::read(self.cluster, self.nodes)?);
        // As csi-provisioner leaves a claim whose volume is not on the node that was first selected for its pod
        if let Some(claim) = volumes.others.first() {
            let annotation = format!("volume.kubernetes.io/selected-node={}", node.name());
            self.cluster.kubectl_ok(["annotate", "--overwrite", "persistentvolumeclaim", claim, &annotation])?;
        }
        self.workloads_on(node).try_for_each(Workload::stop_pod)?;
        node.stop_kept(NODE)?;
        self.cluster.kubectl_ok(["delete", "node", node.name(), "--timeout=180s"])?;
        for claim in &volumes.claims {
            let claim = format!("persistentvolumeclaim/{claim}");
            self.cluster.kubectl_ok(["wait", "--for=delete", &claim, "--timeout=180s"])?;
        }
        for snapshot in &volumes.snapshots {
            self.cluster.kubectl_ok(["delete", "volumesnapshot", snapshot, "--timeout=180s"])?;
        }
        for claim in &volumes.others {
            let phase = self.cluster.kubectl_ok([
                "get",
                "persistentvolumeclaim",
                claim,
                "--ignore-not-found",
                "-o",
                "jsonpath={.status.phase}{.metadata.deletionTimestamp}",
            ])?;
            ensure!(phase == "Bound", "claim {claim}, whose volume is not on {}, is {phase:?}", node.name());
        }
        let there = NodeVolumes::find(node.name(), &State::read(self.cluster, self.nodes)?).lvs;
        ensure!(there == volumes.lvs, "LVs of {} did not stay: {:?} became {there:?}", node.name(), volumes.lvs);
        Ok(volumes)
    }

    fn register_again(&self, node: &Node, spec: &TopolvmSpec) -> Result<()> {
        remove_lvs(node)?;
        // kubelet registers when it starts; the token of the old Node is worth nothing
        node.kill_kept("kubelet")?;
        self.cluster.ready("apiserver", || self.cluster.kubectl_ok(["get", "node", node.name()]))?;
        topolvm::start_agent(self.cluster, node, spec)?;
        topolvm::wait_for_driver(self.cluster, node, spec.flavor)?;
        self.workloads_on(node).try_for_each(Workload::start)
    }
}

/// Removes all LVs of lvmd from a node, as an administrator would.
fn remove_lvs(node: &Node) -> Result<()> {
    let all = "lvs --noheadings -o vg_name,lv_name @topolvm.io/managed-by=lvmd";
    node.script(&format!("{all} | while read -r group lv; do lvremove -qqfy $group/$lv; done")).map(drop)
}
