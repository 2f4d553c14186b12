//! `orphans restore`: a LogicalVolume that gets the LV, a PersistentVolume for it, and a claim.

use std::collections::BTreeMap;
use std::fmt::Debug;

use k8s_openapi::api::core::v1::{
    CSIPersistentVolumeSource, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, ObjectReference,
    PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimSpec, PersistentVolumeSpec, VolumeNodeAffinity,
    VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use serde::Serialize;
use serde::de::DeserializeOwned;
use topolvm_api::{ApiFlavor, LogicalVolume};

use super::adoption::Adoption;
use super::args::RestoreFlags;
use crate::connection::Cluster;
use crate::error::{Error, OrphanError};
use crate::output;
use crate::request::{self, RequestError, resource};

/// Annotation by which csi-provisioner knows PersistentVolumes that it may delete.
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// Annotation of a claim with the driver that its volume is of.
const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const ACCESS_MODE: &str = "ReadWriteOnce";

/// Restores an LV. A second run goes on where the first one ended.
pub(super) async fn run(cluster: &Cluster, flags: &RestoreFlags, namespace: &str) -> Result<(), Error> {
    let volume = adopt(cluster, flags, namespace).await?;
    let persistent = persistent_volume(cluster.flavor, flags, &volume, namespace);
    create(&Api::all(cluster.client.clone()), &persistent, |found: &PersistentVolume| {
        let source = found.spec.as_ref().and_then(|spec| spec.csi.as_ref());
        source.is_some_and(|source| Some(source.volume_handle.as_str()) == volume.volume_id())
    })
    .await?;
    let name = volume.name();
    output::print(&format!("LV {} of node {} is LogicalVolume and PersistentVolume {name}\n", flags.lv, flags.node))?;
    let Some(claim) = claim(cluster.flavor, flags, &volume, namespace) else {
        return output::print(&format!("It is kept (Retain) until a claim names it: volumeName: {name}\n"));
    };
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), namespace);
    create(&claims, &claim, |found: &PersistentVolumeClaim| {
        found.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()) == Some(name)
    })
    .await?;
    let claim = flags.claim.as_deref().unwrap_or_default();
    output::print(&format!("Claim {namespace}/{claim} is bound to it, and the volume kept (Retain) when that goes\n"))
}

/// Gives the LV to a LogicalVolume.
async fn adopt(cluster: &Cluster, flags: &RestoreFlags, namespace: &str) -> Result<LogicalVolume, OrphanError> {
    let flavor = cluster.flavor;
    let mut annotations = Vec::new();
    if !flags.block {
        // What has a filesystem on record is never formatted
        annotations.push((flavor.filesystem(), flags.filesystem.clone()));
    }
    if let Some(claim) = &flags.claim {
        annotations.push((flavor.claim(), format!("{namespace}/{claim}")));
    }
    let name = flags.name.clone();
    if let Some(name) = &name {
        check_no_persistent_volume(cluster, name, &flags.lv).await?;
    } else if let Some(orphan) = super::find(cluster, &flags.node, &flags.lv).await? {
        check_no_persistent_volume(cluster, &orphan.logical_volume, &flags.lv).await?;
    }
    Adoption { node: &flags.node, lv: &flags.lv, name, annotations }.run(cluster).await
}

/// Refuses a name that another PersistentVolume has: mostly that of the LV before its object was gone.
async fn check_no_persistent_volume(cluster: &Cluster, name: &str, lv: &str) -> Result<(), OrphanError> {
    if name.is_empty() {
        return Ok(());
    }
    let volumes: Api<LogicalVolume> = Api::all_with(cluster.client.clone(), &cluster.flavor);
    let earlier = volumes
        .get_opt(name)
        .await
        .map_err(|error| RequestError::new("get", resource::<LogicalVolume>(&cluster.flavor), error))?;
    if earlier.is_some_and(|volume| volume.annotation(cluster.flavor.adopt()) == Some(lv)) {
        return Ok(());
    }
    match request::get::<PersistentVolume>(&Api::all(cluster.client.clone()), name).await? {
        Some(_) => Err(OrphanError::Exists { kind: "PersistentVolume", name: name.to_owned() }),
        None => Ok(()),
    }
}

/// Creates an object, unless an earlier run has made it.
async fn create<K>(api: &Api<K>, object: &K, is_ours: impl FnOnce(&K) -> bool) -> Result<(), OrphanError>
where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize,
{
    match api.create(&PostParams::default(), object).await {
        Err(kube::Error::Api(status)) if status.code == 409 => {
            let name = object.meta().name.clone().unwrap_or_default();
            match request::get(api, &name).await? {
                Some(found) if is_ours(&found) => Ok(()),
                Some(_) | None => Err(OrphanError::Exists { kind: kind::<K>(), name }),
            }
        }
        created => Ok(created.map(drop).map_err(|error| RequestError::new("create", resource::<K>(&()), error))?),
    }
}

fn kind<K: kube::Resource<DynamicType = ()>>() -> &'static str {
    if K::plural(&()) == "persistentvolumes" { "PersistentVolume" } else { "PersistentVolumeClaim" }
}

/// Makes the PersistentVolume of a LogicalVolume, as csi-provisioner does, but kept without a claim.
fn persistent_volume(
    flavor: ApiFlavor,
    flags: &RestoreFlags,
    volume: &LogicalVolume,
    namespace: &str,
) -> PersistentVolume {
    let on_node = NodeSelectorRequirement {
        key: flavor.topology_key().to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![flags.node.clone()]),
    };
    let term = NodeSelectorTerm { match_expressions: Some(vec![on_node]), match_fields: None };
    let source = CSIPersistentVolumeSource {
        driver: flavor.driver_name().to_owned(),
        volume_handle: volume.volume_id().unwrap_or_default().to_owned(),
        fs_type: (!flags.block).then(|| flags.filesystem.clone()),
        ..CSIPersistentVolumeSource::default()
    };
    let claim_ref = flags.claim.as_ref().map(|claim| ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("PersistentVolumeClaim".to_owned()),
        namespace: Some(namespace.to_owned()),
        name: Some(claim.clone()),
        ..ObjectReference::default()
    });
    PersistentVolume {
        metadata: ObjectMeta {
            name: Some(volume.name().to_owned()),
            annotations: Some(BTreeMap::from([(PROVISIONED_BY.to_owned(), flavor.driver_name().to_owned())])),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeSpec {
            capacity: Some(BTreeMap::from([("storage".to_owned(), size(volume))])),
            access_modes: Some(vec![ACCESS_MODE.to_owned()]),
            persistent_volume_reclaim_policy: Some("Retain".to_owned()),
            storage_class_name: Some(flags.storage_class.clone()),
            volume_mode: Some(mode(flags)),
            csi: Some(source),
            claim_ref,
            node_affinity: Some(VolumeNodeAffinity {
                required: Some(NodeSelector { node_selector_terms: vec![term] }),
            }),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    }
}

/// Makes the claim that the flags name.
fn claim(
    flavor: ApiFlavor,
    flags: &RestoreFlags,
    volume: &LogicalVolume,
    namespace: &str,
) -> Option<PersistentVolumeClaim> {
    let name = flags.claim.clone()?;
    // As kube-controller-manager writes on claims whose volumes are made for them: by it the controller knows for which
    // claims it has kubelet grow the filesystem at once
    let driver = BTreeMap::from([(STORAGE_PROVISIONER.to_owned(), flavor.driver_name().to_owned())]);
    Some(PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: Some(namespace.to_owned()),
            annotations: Some(driver),
            ..ObjectMeta::default()
        },
        spec: Some(PersistentVolumeClaimSpec {
            access_modes: Some(vec![ACCESS_MODE.to_owned()]),
            resources: Some(VolumeResourceRequirements {
                requests: Some(BTreeMap::from([("storage".to_owned(), size(volume))])),
                limits: None,
            }),
            storage_class_name: Some(flags.storage_class.clone()),
            volume_mode: Some(mode(flags)),
            volume_name: Some(volume.name().to_owned()),
            ..PersistentVolumeClaimSpec::default()
        }),
        status: None,
    })
}

fn mode(flags: &RestoreFlags) -> String {
    if flags.block { "Block" } else { "Filesystem" }.to_owned()
}

fn size(volume: &LogicalVolume) -> Quantity {
    let real = volume.status.as_ref().and_then(|status| status.current_size.clone());
    real.unwrap_or_else(|| volume.spec.size.clone())
}
