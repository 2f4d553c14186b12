//! Reads from a PersistentVolume which volume it has, and whether that is to be removed.

use k8s_openapi::api::core::v1::PersistentVolume;

/// Returns whether the PersistentVolume refers to the volume of a driver with this id.
pub fn refers_to(persistent: &PersistentVolume, driver: &str, id: &str) -> bool {
    let csi = persistent.spec.as_ref().and_then(|spec| spec.csi.as_ref());
    csi.is_some_and(|csi| csi.driver == driver && csi.volume_handle == id)
}

/// Returns whether the claim of a PersistentVolume is gone and its volume is to be removed, for which csi-provisioner
/// asks again and again.
pub fn waits_for_removal(persistent: &PersistentVolume) -> bool {
    let policy = persistent.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    let phase = persistent.status.as_ref().and_then(|status| status.phase.as_deref());
    policy == Some("Delete") && matches!(phase, Some("Released" | "Failed"))
}
