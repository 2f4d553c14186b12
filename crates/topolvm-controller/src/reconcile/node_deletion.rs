//! A Node is deleted: its claims and volumes go with it, so that their pods can be made elsewhere.
//!
//! The node agent puts a finalizer on its Node, which holds the object until this is done. The LVs themselves are left on the disks: the
//! objects are let go without the node, which may not exist any more.

use std::collections::HashSet;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, ListParams, PatchParams, Preconditions};
use kube::{Api, Client, Resource as _, ResourceExt};
use serde_json::{Value, json};
use topolvm_api::{ApiFlavor, LogicalVolume};
use topolvm_kube::ReconcileMetrics;

use super::claim_informer::{Claims, provisioner, selected_node, volume_name};
use super::error::{Error, deleted, present, status};
use super::events::Events;
use super::finalizers;
use super::work_queue::work;
use crate::node_informer::{NodeMeta, Nodes, is_leaving};

/// Objects per answer where all have to be listed.
const PAGE: u32 = 500;

/// Tidies up after Nodes.
pub(super) struct NodeDeletion {
    pub(super) client: Client,
    pub(super) flavor: ApiFlavor,
    /// Let the Node go and leave everything else alone.
    pub(super) skip: bool,
    pub(super) claims: Claims,
    pub(super) events: Events,
    pub(super) metrics: ReconcileMetrics,
}

impl NodeDeletion {
    /// Works for as long as Nodes are watched.
    pub(super) async fn run(self: Arc<Self>, nodes: Nodes) {
        let this = &self;
        work("node", &self.metrics, nodes.store(), nodes.leaving(), async |node| this.step(&node).await).await;
    }

    async fn step(&self, seen: &NodeMeta) -> Result<(), Error> {
        let name = seen.name_any();
        let nodes: Api<Node> = Api::all(self.client.clone());
        // A Node of this name may have been made since
        let found = nodes.get_metadata_opt(&name).await.map_err(Error::api("read Node", &name))?;
        let Some(node) = found.filter(|node| is_leaving(self.flavor, node)) else {
            return Ok(());
        };
        if self.skip {
            tracing::info!(node = name, "the Node is deleted; its claims and volumes are left alone as told");
        } else {
            self.tidy_up(&name).await?;
        }
        let operations = finalizers::removal(&node.metadata, &[self.flavor.node_finalizer()]);
        let written = nodes.patch_metadata(&name, &PatchParams::default(), &finalizers::patch(operations)?).await;
        present(written).map_err(Error::api("let go of Node", &name))?;
        tracing::info!(node = name, "let go of the deleted Node");
        Ok(())
    }

    /// Deletes the claims and volumes of a node until there are none. A volume that is asked for meanwhile would stay for ever, and so
    /// would its claim, so that the volumes are listed again until none is left.
    async fn tidy_up(&self, node: &str) -> Result<(), Error> {
        if !self.claims.synced().await {
            return Err(Error::ClaimsUnknown);
        }
        loop {
            let volumes = self.volumes_of(node).await?;
            self.delete_claims(node, &volumes).await?;
            if volumes.is_empty() {
                return Ok(());
            }
            for volume in &volumes {
                self.let_go(node, volume).await?;
            }
        }
    }

    /// Deletes the claims that are bound to one of these volumes of the node, and those that wait for a volume there. `selected-node`
    /// says where the scheduler wanted a volume; it survives binding, and the volume can have been made elsewhere.
    async fn delete_claims(&self, node: &str, volumes: &[LogicalVolume]) -> Result<(), Error> {
        // csi-provisioner names a PersistentVolume like the volume that it asked for. A claim that was bound at once has no node on it
        let names: HashSet<_> = volumes.iter().map(ResourceExt::name_any).collect();
        let may_be_here = |claim: &PersistentVolumeClaim| {
            selected_node(claim) == Some(node) || volume_name(claim).is_some_and(|name| names.contains(name))
        };
        let claims = self.claims.all(may_be_here);
        if claims.is_empty() {
            return Ok(());
        }
        let classes = self.classes().await?;
        for seen in claims {
            let (namespace, name) = (seen.namespace().unwrap_or_default(), seen.name_any());
            let full_name = format!("{namespace}/{name}");
            let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), &namespace);
            let found = api.get_opt(&name).await.map_err(Error::api("read claim", &full_name))?;
            let Some(claim) =
                found.filter(|claim| self.is_ours(claim, &classes) && claim.metadata.deletion_timestamp.is_none())
            else {
                continue;
            };
            let is_here = match volume_name(&claim) {
                None => selected_node(&claim) == Some(node),
                Some(persistent_volume) => self.has_volume(&claim, persistent_volume, volumes).await?,
            };
            if !is_here {
                continue;
            }
            let exactly = Preconditions { uid: claim.uid(), resource_version: claim.resource_version() };
            // A claim that has changed may be for another node by now: then this fails, and all is done again
            let gone = api.delete(&name, &DeleteParams::default().preconditions(exactly)).await;
            if present(gone).map_err(Error::api("delete claim", &full_name))?.is_none() {
                continue;
            }
            tracing::info!(node, claim = full_name, "deleted a claim of a deleted Node");
            let note = format!("Node {node}, which has the volume, was deleted; the claim is deleted with it");
            self.events.warning(&claim.object_ref(&()), "NodeDeleted", "DeleteClaim", note).await;
        }
        Ok(())
    }

    /// Whether the claim is bound to one of these volumes. Its PersistentVolume has the id of the volume; any name may have been given to
    /// it by hand. Where the PersistentVolume or the LogicalVolume is gone nobody knows where the data is, and the answer is no.
    async fn has_volume(
        &self,
        claim: &PersistentVolumeClaim,
        persistent_volume: &str,
        volumes: &[LogicalVolume],
    ) -> Result<bool, Error> {
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        // Listing is all that the ClusterRole allows
        let named = ListParams::default().fields(&format!("metadata.name={persistent_volume}"));
        let found = api.list(&named).await.map_err(Error::api("read PersistentVolume", persistent_volume))?;
        let spec = found.items.into_iter().next().and_then(|persistent| persistent.spec).unwrap_or_default();
        let is_bound = spec.claim_ref.is_some_and(|owner| owner.uid.is_some() && owner.uid == claim.metadata.uid);
        let ours = spec.csi.filter(|csi| is_bound && csi.driver == self.flavor.driver_name());
        Ok(ours.is_some_and(|csi| {
            let has_id = |volume: &LogicalVolume| {
                volume.volume_id() == Some(&csi.volume_handle)
                    || volume.metadata.uid.as_ref() == Some(&csi.volume_handle)
            };
            volumes.iter().any(has_id)
        }))
    }

    /// Names of our StorageClasses, for claims that do not say yet whose they are.
    async fn classes(&self) -> Result<HashSet<String>, Error> {
        let classes: Api<StorageClass> = Api::all(self.client.clone());
        let list = classes.list(&ListParams::default()).await.map_err(Error::api("list", "the StorageClasses"))?;
        let ours = list.items.into_iter().filter(|class| class.provisioner == self.flavor.driver_name());
        Ok(ours.map(|class| class.name_any()).collect())
    }

    fn is_ours(&self, claim: &PersistentVolumeClaim, classes: &HashSet<String>) -> bool {
        let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_ref());
        provisioner(claim).map_or_else(
            || class.is_some_and(|class| classes.contains(class)),
            |driver| driver == self.flavor.driver_name(),
        )
    }

    /// The volumes of the node as the API server has them now.
    async fn volumes_of(&self, node: &str) -> Result<Vec<LogicalVolume>, Error> {
        let api: Api<LogicalVolume> = Api::all_with(self.client.clone(), &self.flavor);
        let selected = ListParams::default().fields(&format!("spec.nodeName={node}")).limit(PAGE);
        match list_all(&api, selected).await {
            // "field label not supported": the definition is that of TopoLVM, or the server is older than 1.32
            Err(error) if status(&error).is_some_and(|status| status.code == 400) => {
                list_all(&api, ListParams::default().limit(PAGE)).await
            }
            listed => listed,
        }
        .map(|volumes| {
            let ours = self.flavor.logical_volume_finalizer();
            // What we have let go and others still hold is theirs
            let is_here = |volume: &LogicalVolume| {
                volume.spec.node_name == node && (!volume.is_deleting() || volume.has_finalizer(ours))
            };
            volumes.into_iter().filter(is_here).collect()
        })
        .map_err(Error::api("list the LogicalVolumes of Node", node))
    }

    /// The operations that add the annotation.
    fn mark(&self, volume: &LogicalVolume) -> Vec<Value> {
        let key = self.flavor.pending_deletion();
        match &volume.metadata.annotations {
            Some(_) => {
                let path = format!("/metadata/annotations/{}", key.replace('/', "~1"));
                vec![json!({"op": "add", "path": path, "value": "true"})]
            }
            // Annotations that somebody has added meanwhile would be overwritten
            None => vec![
                json!({"op": "test", "path": "/metadata/resourceVersion", "value": volume.metadata.resource_version}),
                json!({"op": "add", "path": "/metadata/annotations", "value": {key: "true"}}),
            ],
        }
    }

    /// Deletes the object without its node. The annotation tells an agent that still runs to keep its hands off.
    async fn let_go(&self, node: &str, volume: &LogicalVolume) -> Result<(), Error> {
        let api: Api<LogicalVolume> = Api::all_with(self.client.clone(), &self.flavor);
        let name = volume.name_any();
        let mut operations = finalizers::removal(&volume.metadata, &[self.flavor.logical_volume_finalizer()]);
        if !operations.is_empty() {
            operations.extend(self.mark(volume));
            let written = api.patch(&name, &PatchParams::default(), &finalizers::patch(operations)?).await;
            present(written).map_err(Error::api("let go of LogicalVolume", &name))?;
        }
        let exactly = Preconditions { uid: volume.metadata.uid.clone(), resource_version: None };
        let gone = api.delete(&name, &DeleteParams::default().preconditions(exactly)).await;
        deleted(gone).map_err(Error::api("delete LogicalVolume", &name))?;
        tracing::info!(node, volume = name, uid = volume.uid(), "deleted a LogicalVolume of a deleted Node");
        let note = format!("Node {node} was deleted; the volume is forgotten, its data stays on the disks of the node");
        self.events.normal(&volume.object_ref(&self.flavor), "NodeDeleted", "DeleteVolume", note).await;
        Ok(())
    }
}

async fn list_all(api: &Api<LogicalVolume>, mut page: ListParams) -> kube::Result<Vec<LogicalVolume>> {
    let mut volumes = Vec::new();
    loop {
        let list = api.list(&page).await?;
        volumes.extend(list.items);
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(volumes),
        }
    }
}

#[cfg(test)]
mod tests;
