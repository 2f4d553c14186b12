//! Reads the fields of a PersistentVolumeClaim that controllers need.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube_core::ResourceExt as _;

use crate::flavor::SELECTED_NODE;

/// Annotations with which kube-controller-manager names the driver of a claim.
pub const PROVISIONER: [&str; 2] =
    ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"];

/// Annotation with which old claims name their StorageClass; it takes precedence over the field.
const STORAGE_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// Returns the name of the claim's StorageClass.
pub fn storage_class(claim: &PersistentVolumeClaim) -> Option<&str> {
    let annotated = claim.annotations().get(STORAGE_CLASS).map(String::as_str);
    annotated.or_else(|| claim.spec.as_ref()?.storage_class_name.as_deref())
}

/// Returns the driver that kube-controller-manager has written on the claim.
pub fn provisioner(claim: &PersistentVolumeClaim) -> Option<&str> {
    PROVISIONER.iter().find_map(|name| claim.annotations().get(*name)).map(String::as_str)
}

/// Returns the node that the scheduler has selected for the claim.
pub fn selected_node(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.annotations().get(SELECTED_NODE).map(String::as_str)
}

/// Returns the name of the PersistentVolume that the claim is bound to.
pub fn volume_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.volume_name.as_deref().filter(|name| !name.is_empty())
}

/// Returns namespace and name of the claim, as `kubectl` writes them.
pub fn full_name(claim: &PersistentVolumeClaim) -> String {
    format!("{}/{}", claim.namespace().unwrap_or_default(), claim.name_any())
}

/// Returns whether the pod mounts the claim of this name and is not being deleted.
pub fn is_mounted_by(claim: &str, pod: &Pod) -> bool {
    let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    pod.metadata.deletion_timestamp.is_none()
        && volumes
            .any(|volume| volume.persistent_volume_claim.as_ref().is_some_and(|source| source.claim_name == claim))
}
