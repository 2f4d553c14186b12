//! The fields of a PersistentVolume that the checks read. Kubernetes' own type takes 3.5 KB, and at each check the
//! controller has those of all volumes in its memory.

use k8s_openapi::api::core::v1::PersistentVolume;
use topolvm_api::ApiFlavor;

/// A PersistentVolume of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsiPersistentVolume {
    /// Name of the object.
    pub name: String,
    /// `spec.csi.volumeHandle`.
    pub volume_handle: String,
    /// `spec.csi.fsType`; empty if it names none.
    pub fs_type: String,
    /// `spec.storageClassName`; empty if it names none.
    pub storage_class: String,
    /// The volume is a block device, by `spec.volumeMode`.
    pub is_block: bool,
    /// Namespace and name of the claim that has the volume.
    pub claim: Option<(String, String)>,
    /// It is neither released nor being deleted.
    pub is_in_use: bool,
}

impl CsiPersistentVolume {
    /// Takes from a PersistentVolume what is read of it; `None` if it is of another driver.
    pub fn new(flavor: ApiFlavor, volume: PersistentVolume) -> Option<Self> {
        let spec = volume.spec?;
        let source = spec.csi.filter(|source| source.driver == flavor.driver_name())?;
        let phase = volume.status.and_then(|status| status.phase).unwrap_or_default();
        Some(Self {
            name: volume.metadata.name?,
            volume_handle: source.volume_handle,
            fs_type: source.fs_type.unwrap_or_default(),
            storage_class: spec.storage_class_name.unwrap_or_default(),
            is_block: spec.volume_mode.as_deref() == Some("Block"),
            claim: spec.claim_ref.and_then(|claim| Some((claim.namespace?, claim.name?))),
            is_in_use: volume.metadata.deletion_timestamp.is_none() && phase != "Released" && phase != "Failed",
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use topolvm_api::ApiFlavor::{Legacy, TopoLvm};

    use super::*;

    fn volume(phase: &str) -> PersistentVolume {
        let spec: Value = json!({
            "csi": {"driver": "topolvm.io", "volumeHandle": "v"}, "volumeMode": "Block",
            "claimRef": {"namespace": "shop", "name": "data"},
        });
        let object = json!({"metadata": {"name": "pvc-1"}, "spec": spec, "status": {"phase": phase}});
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn volume_of_another_driver_is_none() {
        assert_eq!(CsiPersistentVolume::new(Legacy, volume("Bound")), None);
    }

    #[test]
    fn released_volume_is_not_in_use() {
        let bound = CsiPersistentVolume {
            name: "pvc-1".to_owned(),
            volume_handle: "v".to_owned(),
            fs_type: String::new(),
            storage_class: String::new(),
            is_block: true,
            claim: Some(("shop".to_owned(), "data".to_owned())),
            is_in_use: true,
        };
        assert_eq!(CsiPersistentVolume::new(TopoLvm, volume("Bound")), Some(bound.clone()));
        let released = CsiPersistentVolume { is_in_use: false, ..bound };
        assert_eq!(CsiPersistentVolume::new(TopoLvm, volume("Released")), Some(released));
    }
}
