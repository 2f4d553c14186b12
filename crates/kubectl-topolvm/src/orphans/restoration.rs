//! `orphans restore`: a LogicalVolume that gets the LV, a PersistentVolume for it, and a claim.

use std::collections::BTreeMap;
use std::fmt::Debug;

use cli_runtime::connection::Cluster;
use cli_runtime::output;
use cli_runtime::request::{self, RequestError, resource};
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

use super::adoption::{Adoption, Purpose};
use super::args::RestoreFlags;
use crate::error::{Error, OrphanError};

/// Annotation by which csi-provisioner knows PersistentVolumes that it may delete.
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// Annotation of a claim with the driver that its volume is of.
const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const ACCESS_MODE: &str = "ReadWriteOnce";

/// Restores an LV. A second run goes on where the first one ended.
///
/// Without a claim it makes no PersistentVolume: any claim of any namespace could bind one that is not reserved.
pub(super) async fn run(cluster: &Cluster, flags: &RestoreFlags, namespace: &str) -> Result<(), Error> {
    let volume = adopt(cluster, flags, namespace).await?;
    let name = volume.name();
    let Some(claim_name) = &flags.claim else {
        return Ok(output::print(&format!(
            "LV {} of node {} now belongs to LogicalVolume {name}, which has no PersistentVolume; run the command with \
                -n NAMESPACE --claim NAME to create the PersistentVolume and the claim\n",
            flags.lv, flags.node
        ))?);
    };
    create_persistent_volume(cluster, flags, &volume, namespace, claim_name).await?;
    output::print(&format!(
        "LV {} of node {} now belongs to LogicalVolume and PersistentVolume {name}\n",
        flags.lv, flags.node
    ))?;
    let claim = claim(cluster.flavor, flags, &volume, namespace, claim_name);
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), namespace);
    let found = create(&claims, &claim).await?;
    if found.is_some_and(|found| found.spec.and_then(|spec| spec.volume_name).as_deref() != Some(name)) {
        return Err(OrphanError::Exists { kind: "PersistentVolumeClaim", name: claim_name.clone() }.into());
    }
    Ok(output::print(&format!(
        "Claim {namespace}/{claim_name} is bound to it; the volume is kept (Retain) when the claim is deleted\n"
    ))?)
}

/// Makes the PersistentVolume, or takes the one that an earlier run has made for the same claim.
async fn create_persistent_volume(
    cluster: &Cluster,
    flags: &RestoreFlags,
    volume: &LogicalVolume,
    namespace: &str,
    claim: &str,
) -> Result<(), OrphanError> {
    let wanted = persistent_volume(cluster.flavor, flags, volume, namespace, claim);
    let Some(found) = create(&Api::<PersistentVolume>::all(cluster.client.clone()), &wanted).await? else {
        return Ok(());
    };
    let spec = found.spec.unwrap_or_default();
    let handle = spec.csi.map(|source| source.volume_handle);
    let name = volume.name().to_owned();
    if handle.as_deref() != volume.volume_id() {
        return Err(OrphanError::Exists { kind: "PersistentVolume", name });
    }
    let reserved = spec.claim_ref.unwrap_or_default();
    let reserved = (reserved.namespace.unwrap_or_default(), reserved.name.unwrap_or_default());
    if (reserved.0.as_str(), reserved.1.as_str()) == (namespace, claim) {
        return Ok(());
    }
    Err(OrphanError::Reserved { name, reserved: format!("{}/{}", reserved.0, reserved.1) })
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
    let (node, lv, name) = (&*flags.node, &*flags.lv, flags.name.clone());
    let adoption = Adoption { purpose: Purpose::Restore, node, lv, name, annotations };
    let earlier = adoption.find_earlier(cluster).await?;
    if earlier.is_none() {
        super::check_unreferenced(cluster, lv).await?;
        check_no_persistent_volume(cluster, flags).await?;
    }
    adoption.run(cluster, earlier).await
}

/// Refuses a name that a PersistentVolume has: its handle is that of another volume, and cannot be changed.
async fn check_no_persistent_volume(cluster: &Cluster, flags: &RestoreFlags) -> Result<(), OrphanError> {
    let name = match &flags.name {
        Some(name) => Some(name.clone()),
        None => super::find(cluster, &flags.node, &flags.lv).await?.map(|orphan| orphan.logical_volume),
    };
    let Some(name) = name.filter(|name| !name.is_empty()) else { return Ok(()) };
    match request::get::<PersistentVolume>(&Api::all(cluster.client.clone()), &name).await? {
        Some(_) => Err(OrphanError::Exists { kind: "PersistentVolume", name }),
        None => Ok(()),
    }
}

/// Creates an object; returns the one that has its name already.
async fn create<K>(api: &Api<K>, object: &K) -> Result<Option<K>, RequestError>
where
    K: kube::Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize,
{
    match api.create(&PostParams::default(), object).await {
        Err(kube::Error::Api(status)) if status.code == 409 => {
            request::get(api, object.meta().name.as_deref().unwrap_or_default()).await
        }
        created => created.map(|_| None).map_err(|error| RequestError::new("create", resource::<K>(&()), error)),
    }
}

/// Makes the PersistentVolume of a LogicalVolume, as csi-provisioner does, but kept when its claim goes.
fn persistent_volume(
    flavor: ApiFlavor,
    flags: &RestoreFlags,
    volume: &LogicalVolume,
    namespace: &str,
    claim: &str,
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
    let claim_ref = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("PersistentVolumeClaim".to_owned()),
        namespace: Some(namespace.to_owned()),
        name: Some(claim.to_owned()),
        ..ObjectReference::default()
    };
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
            claim_ref: Some(claim_ref),
            node_affinity: Some(VolumeNodeAffinity {
                required: Some(NodeSelector { node_selector_terms: vec![term] }),
            }),
            ..PersistentVolumeSpec::default()
        }),
        status: None,
    }
}

/// Makes the claim of the PersistentVolume.
fn claim(
    flavor: ApiFlavor,
    flags: &RestoreFlags,
    volume: &LogicalVolume,
    namespace: &str,
    name: &str,
) -> PersistentVolumeClaim {
    // As kube-controller-manager writes on claims whose volumes are made for them: by it the controller knows for which
    // claims it has kubelet grow the filesystem at once
    let driver = BTreeMap::from([(STORAGE_PROVISIONER.to_owned(), flavor.driver_name().to_owned())]);
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
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
    }
}

fn mode(flags: &RestoreFlags) -> String {
    if flags.block { "Block" } else { "Filesystem" }.to_owned()
}

fn size(volume: &LogicalVolume) -> Quantity {
    let real = volume.status.as_ref().and_then(|status| status.current_size.clone());
    real.unwrap_or_else(|| volume.spec.size.clone())
}
