//! Decides what is due for a PersistentVolume of this driver. Pure.

use json_patch::PatchOperation;
use topolvm_kube::{add_finalizer, remove_finalizers};

use crate::known_volume::{KnownVolume, VOLUME_FINALIZER};

/// Returns whether nothing is due as long as the PersistentVolume does not change.
pub(crate) fn is_settled(volume: &KnownVolume) -> bool {
    finalizer_change(volume).is_empty() && !is_deletion_due(volume)
}

/// Returns the patch that gives the PersistentVolume the finalizer that its reclaim policy needs.
pub(crate) fn finalizer_change(volume: &KnownVolume) -> Vec<PatchOperation> {
    match volume.reclaim_policy.as_str() {
        "Delete" if volume.phase == "Bound" && !volume.is_deleting => {
            add_finalizer(&volume.metadata(), VOLUME_FINALIZER)
        }
        "Retain" | "Recycle" => remove_finalizers(&volume.metadata(), &[VOLUME_FINALIZER]),
        _ => Vec::new(),
    }
}

/// Returns whether the volume is to be deleted. Of a PersistentVolume that is being deleted and lacks the finalizer it
/// is deleted already.
pub(crate) fn is_deletion_due(volume: &KnownVolume) -> bool {
    let is_released = matches!(volume.phase.as_str(), "Released" | "Failed");
    is_released && volume.reclaim_policy == "Delete" && (volume.has_finalizer() || !volume.is_deleting)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn volume(policy: &str, phase: &str, has_finalizer: bool, is_deleting: bool) -> KnownVolume {
        let mut metadata = json!({"name": "a", "uid": "1", "resourceVersion": "7"});
        if has_finalizer {
            metadata["finalizers"] = json!(["kubernetes.io/pv-protection", VOLUME_FINALIZER]);
        }
        if is_deleting {
            metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        let object: Value = json!({
            "metadata": metadata,
            "spec": {"persistentVolumeReclaimPolicy": policy, "csi": {"driver": "d", "volumeHandle": "id"}},
            "status": {"phase": phase},
        });
        KnownVolume::from_object("d", &serde_json::from_value(object).unwrap()).unwrap()
    }

    #[rstest]
    #[case::released("Delete", "Released", true, false, true)]
    #[case::without_finalizer("Delete", "Released", false, false, true)]
    #[case::failed("Delete", "Failed", true, false, true)]
    #[case::deleted_by_a_user("Delete", "Released", true, true, true)]
    #[case::already_deleted("Delete", "Released", false, true, false)]
    #[case::bound("Delete", "Bound", true, false, false)]
    #[case::bound_and_deleted("Delete", "Bound", true, true, false)]
    #[case::available("Delete", "Available", true, false, false)]
    #[case::retained("Retain", "Released", true, false, false)]
    fn volume_deletion_is_due(
        #[case] policy: &str,
        #[case] phase: &str,
        #[case] has_finalizer: bool,
        #[case] is_deleting: bool,
        #[case] is_due: bool,
    ) {
        let volume = volume(policy, phase, has_finalizer, is_deleting);
        assert_eq!(is_deletion_due(&volume), is_due);
        assert!(!is_due || !is_settled(&volume));
    }

    #[rstest]
    #[case::lacks_it("Delete", "Bound", false, false, true)]
    #[case::has_it("Delete", "Bound", true, false, false)]
    #[case::not_bound("Delete", "Available", false, false, false)]
    #[case::being_deleted("Delete", "Bound", false, true, false)]
    #[case::retained_with_it("Retain", "Bound", true, false, true)]
    #[case::retained_without_it("Retain", "Released", false, false, false)]
    fn volume_finalizer_follows_the_reclaim_policy(
        #[case] policy: &str,
        #[case] phase: &str,
        #[case] has_finalizer: bool,
        #[case] is_deleting: bool,
        #[case] is_changed: bool,
    ) {
        let volume = volume(policy, phase, has_finalizer, is_deleting);
        assert_eq!((!finalizer_change(&volume).is_empty(), is_settled(&volume)), (is_changed, !is_changed));
    }
}
