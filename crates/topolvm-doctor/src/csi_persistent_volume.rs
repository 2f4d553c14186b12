//! The fields of a PersistentVolume that the checks read. Kubernetes' own type takes 3.5 KB, and at each check the
//! controller has those of all volumes in its memory.

use k8s_openapi::api::core::v1::PersistentVolume;
use topolvm_api::{ApiFlavor, FILESYSTEMS};

/// A PersistentVolume of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsiPersistentVolume {
    /// Name of the object.
    pub name: Box<str>,
    /// `spec.csi.volumeHandle`.
    pub volume_handle: Box<str>,
    /// `spec.csi.fsType`, if agents can make it.
    pub filesystem: Option<&'static str>,
    /// `spec.storageClassName`; empty if it names none.
    pub storage_class: Box<str>,
    /// The volume is a block device, by `spec.volumeMode`.
    pub is_block: bool,
    /// Namespace and name of the claim that has the volume, with a slash in between.
    pub claim: Option<Box<str>>,
    /// It is neither released nor being deleted.
    pub is_in_use: bool,
}

impl CsiPersistentVolume {
    /// Takes from a PersistentVolume what is read of it; `None` if it is of another driver.
    pub fn new(flavor: ApiFlavor, volume: PersistentVolume) -> Option<Self> {
        let spec = volume.spec?;
        let source = spec.csi.filter(|source| source.driver == flavor.driver_name())?;
        let phase = volume.status.and_then(|status| status.phase).unwrap_or_default();
        let full_name = |namespace: Option<String>, name: Option<String>| Some([namespace?, name?].join("/").into());
        Some(Self {
            name: volume.metadata.name?.into(),
            volume_handle: source.volume_handle.into(),
            filesystem: FILESYSTEMS.into_iter().find(|known| Some(*known) == source.fs_type.as_deref()),
            storage_class: spec.storage_class_name.unwrap_or_default().into(),
            is_block: spec.volume_mode.as_deref() == Some("Block"),
            claim: spec.claim_ref.and_then(|claim| full_name(claim.namespace, claim.name)),
            is_in_use: volume.metadata.deletion_timestamp.is_none() && phase != "Released" && phase != "Failed",
        })
    }

    /// Returns namespace and name of the claim that has the volume.
    pub fn claim(&self) -> Option<(&str, &str)> {
        self.claim.as_deref()?.split_once('/')
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use topolvm_api::ApiFlavor::{Legacy, TopoLvm};

    use super::*;

    fn volume(phase: &str) -> PersistentVolume {
        let spec: Value = json!({
            "csi": {"driver": "topolvm.io", "volumeHandle": "v", "fsType": "xfs"}, "volumeMode": "Block",
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
            name: "pvc-1".into(),
            volume_handle: "v".into(),
            filesystem: Some("xfs"),
            storage_class: "".into(),
            is_block: true,
            claim: Some("shop/data".into()),
            is_in_use: true,
        };
        assert_eq!(CsiPersistentVolume::new(TopoLvm, volume("Bound")), Some(bound.clone()));
        assert_eq!(bound.claim(), Some(("shop", "data")));
        let released = CsiPersistentVolume { is_in_use: false, ..bound };
        assert_eq!(CsiPersistentVolume::new(TopoLvm, volume("Released")), Some(released));
    }
}
