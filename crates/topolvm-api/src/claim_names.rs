//! The names of the PersistentVolumeClaims of a pod.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Pod, Volume};
use kube_core::ResourceExt as _;

/// Returns the names of the claims of a pod, which are of its namespace. That of a generic ephemeral volume is named
/// after the pod and the volume.
#[must_use]
pub fn claim_names(pod: &Pod) -> BTreeSet<String> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let name = |volume: &Volume| {
        let named = volume.persistent_volume_claim.as_ref().map(|claim| claim.claim_name.clone());
        named.or_else(|| volume.ephemeral.as_ref().map(|_| format!("{}-{}", pod.name_any(), volume.name)))
    };
    volumes.filter_map(name).collect()
}
