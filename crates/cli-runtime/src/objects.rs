//! The objects that volumes consist of, listed together.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::{Api, ResourceExt};
use topolvm_api::{ApiFlavor, LogicalVolume};

use crate::connection::Cluster;
use crate::request::{self, RequestResult};

/// The objects that volumes consist of.
#[derive(Debug, Default)]
pub struct Objects {
    /// LogicalVolumes of the cluster's API group.
    pub volumes: Vec<LogicalVolume>,
    /// PersistentVolumes of all drivers.
    pub persistent: Vec<PersistentVolume>,
    /// Claims of all StorageClasses.
    pub claims: Vec<PersistentVolumeClaim>,
    /// StorageClasses of all drivers.
    pub classes: Vec<StorageClass>,
    /// Nodes of the cluster.
    pub nodes: Vec<Node>,
}

impl Objects {
    /// Lists the claims of one namespace or of all, and all objects of the other kinds.
    pub async fn list(cluster: &Cluster, namespace: Option<&str>) -> RequestResult<Self> {
        let Cluster { client, flavor } = cluster;
        let volumes = Api::<LogicalVolume>::all_with(client.clone(), flavor);
        let (volumes, persistent, claims, classes, nodes) = futures::try_join!(
            request::list(&volumes, flavor, ""),
            request::list_all::<PersistentVolume>(client),
            request::list_within::<PersistentVolumeClaim>(client, namespace),
            request::list_all::<StorageClass>(client),
            request::list_all::<Node>(client),
        )?;
        Ok(Self { volumes, persistent, claims, classes, nodes })
    }

    /// Returns the claims that are bound to a PersistentVolume of ours, or whose StorageClass is ours.
    pub fn our_claims(&self, flavor: ApiFlavor) -> Vec<&PersistentVolumeClaim> {
        let classes: BTreeSet<_> = self.our_classes(flavor).map(ResourceExt::name_any).collect();
        let volumes: BTreeSet<_> = self.our_persistent(flavor).map(ResourceExt::name_any).collect();
        let all: BTreeSet<_> = self.persistent.iter().filter_map(|volume| volume.metadata.name.as_ref()).collect();
        let is_ours = |claim: &&PersistentVolumeClaim| {
            let Some(spec) = &claim.spec else { return false };
            match spec.volume_name.as_ref().filter(|name| !name.is_empty()) {
                Some(volume) if all.contains(volume) => volumes.contains(volume),
                // The class that existed when the claim was bound may be gone
                Some(_) | None => spec.storage_class_name.as_ref().is_some_and(|name| classes.contains(name)),
            }
        };
        self.claims.iter().filter(is_ours).collect()
    }

    fn our_classes(&self, flavor: ApiFlavor) -> impl Iterator<Item = &StorageClass> {
        self.classes.iter().filter(move |class| class.provisioner == flavor.driver_name())
    }

    /// Returns the PersistentVolumes of our driver.
    pub fn our_persistent(&self, flavor: ApiFlavor) -> impl Iterator<Item = &PersistentVolume> {
        self.persistent.iter().filter(move |volume| {
            let source = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
            source.is_some_and(|source| source.driver == flavor.driver_name())
        })
    }
}

/// Returns true for a Node whose kubelet reports that it is ready.
pub fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}
