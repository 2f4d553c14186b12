//! Deletes the claims of a deleted Node, so that their pods can be created elsewhere, and forgets its volumes except
//! those that something keeps.
//!
//! The node agent adds a finalizer to its Node, which holds the object until this is done. The LVs themselves stay on
//! the disks: the finalizer of a LogicalVolume is removed without the node agent, which may not exist any more.

mod disk_operations;
mod keepers;

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, ListParams, PatchParams, Preconditions};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Resource as _, ResourceExt};
use topolvm_api::claim::{full_name, provisioner, selected_node, volume_name};
use topolvm_api::{LogicalVolume, RebuildPolicies, RebuildPolicy, SELECTED_NODE};
use topolvm_capacity::NodeMeta;
use topolvm_kube::{
    Cache, CachedClaim, ReconcileError, json_patch, list_selected, none_if_deleted, none_if_not_found,
    remove_annotation, remove_finalizers, set_annotation,
};

use super::Controllers;
use super::work_queue::reconcile_all;
use crate::node_informer::awaits_finalizer;
use keepers::Keepers;

/// The controller of deleted Nodes.
pub(super) struct NodeDeletion {
    pub(super) shared: Controllers,
    pub(super) claims: Cache<CachedClaim>,
}

impl NodeDeletion {
    /// Runs for as long as Nodes are watched.
    pub(super) async fn run(self) {
        let (this, nodes) = (&self, &self.shared.nodes);
        let reconcile = async |node: Arc<NodeMeta>| this.reconcile(&node).await;
        let find = |node: &ObjectRef<NodeMeta>| nodes.cache.get(node);
        reconcile_all("node", &self.shared.metrics, find, nodes.awaiting_finalizer(), reconcile).await;
    }

    /// Deletes claims and volumes of a deleted Node, and takes the finalizer off it.
    async fn reconcile(&self, seen: &NodeMeta) -> Result<(), ReconcileError> {
        let name = seen.name_any();
        let nodes: Api<Node> = Api::all(self.shared.client.clone());
        // A Node of this name may have been made since
        let found = nodes.get_metadata_opt(&name).await.map_err(ReconcileError::api("read Node", &name))?;
        let Some(node) = found.filter(|node| awaits_finalizer(self.shared.flavor, node)) else {
            return Ok(());
        };
        if self.shared.settings.skip_node_finalize {
            tracing::info!(
                node = name,
                "the Node was deleted; its claims and volumes are kept because of --skip-node-finalize"
            );
        } else {
            self.delete_claims_and_volumes(&name).await?;
            self.delete_disk_operations(&name).await?;
        }
        let patch = json_patch(remove_finalizers(&node.metadata, &[self.shared.flavor.node_finalizer()]));
        let written = nodes.patch_metadata(&name, &PatchParams::default(), &patch).await;
        none_if_not_found(written).map_err(ReconcileError::api("remove the finalizer from Node", &name))?;
        tracing::info!(node = name, "removed the finalizer from the deleted Node");
        Ok(())
    }

    /// Deletes the claims and volumes of a node until there are none except those that something keeps. A volume that
    /// is created meanwhile would stay forever, and so would its claim, so that the volumes are listed again until none
    /// is left.
    async fn delete_claims_and_volumes(&self, node: &str) -> Result<(), ReconcileError> {
        if !self.claims.wait_until_listed().await {
            return Err(ReconcileError::ClaimsNotListed);
        }
        loop {
            let mut volumes = self.list_volumes(node).await?;
            let keepers = Keepers::list(&self.shared.client, self.shared.flavor.driver_name(), &volumes).await?;
            let left = self.find_rebuilt().await?;
            let of_rebuilt = keepers.handles(|name| left.contains(name));
            volumes.retain(|volume| {
                !left.contains(&volume.name_any()) && !of_rebuilt.iter().any(|handle| has_id(volume, handle))
            });
            let is_bound_here = |name: &str| !left.contains(name) && keepers.has_persistent_volume(name);
            self.let_claims_go(node, &volumes, is_bound_here).await?;
            let (mut forgotten, mut kept) = (Vec::new(), Vec::new());
            for volume in &volumes {
                match keepers.find(&self.shared.client, volume).await? {
                    Some(keeper) => kept.push((volume, keeper)),
                    None => forgotten.push(volume),
                }
            }
            if forgotten.is_empty() {
                self.report_kept(node, &kept).await;
                return Ok(());
            }
            for volume in forgotten {
                self.delete_volume(node, volume).await?;
            }
        }
    }

    /// Publishes which volumes stay although their Node is deleted.
    async fn report_kept(&self, node: &str, kept: &[(&LogicalVolume, String)]) {
        for (volume, keeper) in kept {
            tracing::info!(node, volume = volume.name(), keeper, "kept a LogicalVolume of a deleted Node");
            let note = format!(
                "Node {node} was deleted; the volume is kept because PersistentVolume {keeper} refers to it, and is \
                 usable again when a Node of this name returns with its disks"
            );
            let about = volume.object_ref(&self.shared.flavor);
            self.shared.events.publish_normal(&about, "NodeDeleted", "KeepVolume", note).await;
        }
    }

    /// Finds the PersistentVolumes, and by that the LogicalVolumes, of claims that request to be recreated. They are
    /// skipped: the controller of those claims waits for the node to come back, and deletes nothing before the node is
    /// proven lost.
    async fn find_rebuilt(&self) -> Result<HashSet<String>, ReconcileError> {
        if !self.shared.rebuilds_claims {
            return Ok(HashSet::new());
        }
        let policies = RebuildPolicies::new(self.shared.flavor, self.list_classes().await?.iter());
        // A value that cannot be understood may have meant it
        let is_rebuilt = |claim: &CachedClaim| claim.rebuild_policy(&policies).map_or(true, RebuildPolicy::is_on);
        let claims = self.claims.state();
        let rebuilt = claims.iter().filter(|claim| is_rebuilt(claim));
        Ok(rebuilt.filter_map(|claim| claim.volume_name().map(str::to_owned)).collect())
    }

    /// Deletes the claims that are bound to one of these volumes of the node, and removes the node from those that wait
    /// for a volume there: without a volume there is nothing to lose, and another node will do. `selected-node` names
    /// the node where the scheduler wanted a volume; it survives binding, and the volume can have been created
    /// elsewhere.
    async fn let_claims_go(
        &self,
        node: &str,
        volumes: &[LogicalVolume],
        is_bound_here: impl Fn(&str) -> bool,
    ) -> Result<(), ReconcileError> {
        // A claim that was bound immediately, or by hand, has no node on it
        let may_be_here = |claim: &CachedClaim| {
            claim.selected_node() == Some(node) || claim.volume_name().is_some_and(&is_bound_here)
        };
        let mut claims = self.claims.state();
        claims.retain(|claim| may_be_here(claim));
        if claims.is_empty() {
            return Ok(());
        }
        let classes = self.list_own_classes().await?;
        for seen in claims {
            match self.read_claim(&seen, node, volumes, &classes).await? {
                Some(claim) if volume_name(&claim).is_some() => self.delete_claim(node, &claim).await?,
                Some(claim) => self.deselect_node(node, &claim).await?,
                None => {}
            }
        }
        Ok(())
    }

    /// Takes the selected node off a claim that waits for a volume, so that kube-scheduler selects another one.
    async fn deselect_node(&self, node: &str, claim: &PersistentVolumeClaim) -> Result<(), ReconcileError> {
        let full_name = full_name(claim);
        let patch = json_patch(remove_annotation(&claim.metadata, SELECTED_NODE, node));
        let written = self.claim_api(claim).patch_metadata(&claim.name_any(), &PatchParams::default(), &patch).await;
        none_if_not_found(written).map_err(ReconcileError::api("remove the selected node from claim", &full_name))?;
        tracing::info!(node, claim = full_name, "removed a deleted Node from a claim without a volume");
        let note =
            format!("Node {node}, which was selected for the volume, was deleted; kube-scheduler selects another node");
        self.shared.events.publish_normal(&claim.object_ref(&()), "NodeDeleted", "DeselectNode", note).await;
        Ok(())
    }

    /// Reads a claim from the API server; `None` if it is gone, being deleted, of another driver or of another node.
    async fn read_claim(
        &self,
        seen: &CachedClaim,
        node: &str,
        volumes: &[LogicalVolume],
        classes: &HashSet<String>,
    ) -> Result<Option<PersistentVolumeClaim>, ReconcileError> {
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.shared.client.clone(), seen.namespace());
        let found = api.get_opt(seen.name()).await.map_err(ReconcileError::api("read claim", seen.full_name()))?;
        let is_live = |claim: &PersistentVolumeClaim| claim.metadata.deletion_timestamp.is_none();
        let Some(claim) = found.filter(is_live) else { return Ok(None) };
        let is_here = match volume_name(&claim) {
            None => selected_node(&claim) == Some(node) && self.is_ours(&claim, classes),
            Some(persistent_volume) => self.is_bound_to_any(&claim, persistent_volume, volumes).await?,
        };
        Ok(is_here.then_some(claim))
    }

    /// Deletes a claim of the node. One that has changed may be for another node by now: then this fails, and all is
    /// done again.
    async fn delete_claim(&self, node: &str, claim: &PersistentVolumeClaim) -> Result<(), ReconcileError> {
        let (name, full_name) = (claim.name_any(), full_name(claim));
        let exactly = Preconditions { uid: claim.uid(), resource_version: claim.resource_version() };
        let gone = self.claim_api(claim).delete(&name, &DeleteParams::default().preconditions(exactly)).await;
        if none_if_not_found(gone).map_err(ReconcileError::api("delete claim", &full_name))?.is_none() {
            return Ok(());
        }
        tracing::info!(node, claim = full_name, "deleted a claim of a deleted Node");
        let note = format!("Node {node}, which has the volume, was deleted; the claim is deleted too");
        self.shared.events.publish_warning(&claim.object_ref(&()), "NodeDeleted", "DeleteClaim", note).await;
        Ok(())
    }

    fn claim_api(&self, claim: &PersistentVolumeClaim) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.shared.client.clone(), &claim.namespace().unwrap_or_default())
    }

    /// Returns whether the claim is bound to one of these volumes. Its PersistentVolume has the id of the volume; an
    /// administrator may have given it any name. If the PersistentVolume or the LogicalVolume is gone, the location of
    /// the data is unknown, and the answer is no.
    async fn is_bound_to_any(
        &self,
        claim: &PersistentVolumeClaim,
        persistent_volume: &str,
        volumes: &[LogicalVolume],
    ) -> Result<bool, ReconcileError> {
        let api: Api<PersistentVolume> = Api::all(self.shared.client.clone());
        // Listing is all that the ClusterRole allows
        let named = ListParams::default().fields(&format!("metadata.name={persistent_volume}"));
        let found = api.list(&named).await.map_err(ReconcileError::api("read PersistentVolume", persistent_volume))?;
        let spec = found.items.into_iter().next().and_then(|persistent| persistent.spec).unwrap_or_default();
        let is_bound = spec.claim_ref.is_some_and(|owner| owner.uid.is_some() && owner.uid == claim.metadata.uid);
        let ours = spec.csi.filter(|csi| is_bound && csi.driver == self.shared.flavor.driver_name());
        Ok(ours.is_some_and(|csi| volumes.iter().any(|volume| has_id(volume, &csi.volume_handle))))
    }

    /// Lists the names of this driver's StorageClasses, for claims that do not name their driver yet.
    async fn list_own_classes(&self) -> Result<HashSet<String>, ReconcileError> {
        let classes = self.list_classes().await?.into_iter();
        let ours = classes.filter(|class| class.provisioner == self.shared.flavor.driver_name());
        Ok(ours.map(|class| class.name_any()).collect())
    }

    async fn list_classes(&self) -> Result<Vec<StorageClass>, ReconcileError> {
        let classes: Api<StorageClass> = Api::all(self.shared.client.clone());
        let listed = classes.list(&ListParams::default()).await;
        Ok(listed.map_err(ReconcileError::api("list", "the StorageClasses"))?.items)
    }

    fn is_ours(&self, claim: &PersistentVolumeClaim, classes: &HashSet<String>) -> bool {
        let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_ref());
        provisioner(claim).map_or_else(
            || class.is_some_and(|class| classes.contains(class)),
            |driver| driver == self.shared.flavor.driver_name(),
        )
    }

    /// Lists the volumes of the node from the API server.
    async fn list_volumes(&self, node: &str) -> Result<Vec<LogicalVolume>, ReconcileError> {
        let api: Api<LogicalVolume> = Api::all_with(self.shared.client.clone(), &self.shared.flavor);
        let ours = self.shared.flavor.logical_volume_finalizer();
        let is_here = |volume: &LogicalVolume| volume.spec.node_name == node;
        let listed = list_selected(&api, &format!("spec.nodeName={node}"), is_here).await;
        let mut volumes = listed.map_err(ReconcileError::api("list the LogicalVolumes of Node", node))?;
        // A volume without our finalizer that others still hold is theirs
        volumes.retain(|volume| !volume.is_deleting() || volume.has_finalizer(ours));
        Ok(volumes)
    }

    /// Deletes the object without its node agent: removes the finalizer, and adds an annotation that makes an agent
    /// that still runs ignore the LV.
    async fn delete_volume(&self, node: &str, volume: &LogicalVolume) -> Result<(), ReconcileError> {
        let api: Api<LogicalVolume> = Api::all_with(self.shared.client.clone(), &self.shared.flavor);
        let name = volume.name_any();
        let mut operations = remove_finalizers(&volume.metadata, &[self.shared.flavor.logical_volume_finalizer()]);
        if !operations.is_empty() {
            operations.extend(set_annotation(&volume.metadata, self.shared.flavor.pending_deletion(), "true"));
            let written = api.patch(&name, &PatchParams::default(), &json_patch(operations)).await;
            none_if_not_found(written)
                .map_err(ReconcileError::api("remove the finalizer from LogicalVolume", &name))?;
        }
        let exactly = Preconditions { uid: volume.metadata.uid.clone(), resource_version: None };
        let gone = api.delete(&name, &DeleteParams::default().preconditions(exactly)).await;
        none_if_deleted(gone).map_err(ReconcileError::api("delete LogicalVolume", &name))?;
        tracing::info!(node, volume = name, uid = volume.uid(), "deleted a LogicalVolume of a deleted Node");
        let note = format!(
            "Node {node} was deleted; the LogicalVolume is removed, and its data stays on the disks of the node"
        );
        self.shared
            .events
            .publish_normal(&volume.object_ref(&self.shared.flavor), "NodeDeleted", "DeleteVolume", note)
            .await;
        Ok(())
    }
}

/// Returns whether a volume handle is that of a volume.
fn has_id(volume: &LogicalVolume, handle: &str) -> bool {
    volume.volume_id() == Some(handle) || volume.uid() == handle
}

#[cfg(test)]
mod tests;
