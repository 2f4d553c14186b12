//! A PersistentVolume of this driver, with the fields that the provisioner reads.

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, SecretReference};
use kube::api::ObjectMeta;
use kube::{Resource as _, ResourceExt as _};
use topolvm_kube::has_finalizer;

/// Annotation with the driver that has provisioned a PersistentVolume.
pub(crate) const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
/// Annotations with the Secret for the deletion: name and namespace, empty where there is none.
pub(crate) const DELETION_SECRET: [&str; 2] = [
    "volume.kubernetes.io/provisioner-deletion-secret-name",
    "volume.kubernetes.io/provisioner-deletion-secret-namespace",
];
/// Finalizer that keeps a PersistentVolume until its volume is deleted.
pub(crate) const VOLUME_FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

/// A PersistentVolume of this driver.
#[derive(Clone, Debug)]
pub(crate) struct KnownVolume {
    pub(crate) name: String,
    pub(crate) uid: String,
    version: String,
    finalizers: Vec<String>,
    pub(crate) is_deleting: bool,
    pub(crate) phase: String,
    pub(crate) reclaim_policy: String,
    /// The CSI id of its volume.
    pub(crate) handle: String,
    pub(crate) is_block: bool,
    pub(crate) class: String,
    /// Its claim.
    pub(crate) claim: Option<ClaimReference>,
    pub(crate) deletion_secret: DeletionSecret,
    /// True if its volume is deleted, which the watch has yet to show.
    pub(crate) is_finished: bool,
}

/// The claim of a PersistentVolume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimReference {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
}

/// The Secret for the deletion of a volume.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum DeletionSecret {
    /// None is needed.
    None,
    /// The annotations name it.
    Named(SecretReference),
    /// The PersistentVolume does not say so; its StorageClass does.
    OfClass,
}

impl KnownVolume {
    /// Reads a PersistentVolume; `None` if its volume is not of this driver, or if another provisioner has made it.
    pub(crate) fn from_object(driver: &str, volume: &PersistentVolume) -> Option<Self> {
        let spec = volume.spec.as_ref()?;
        let csi = spec.csi.as_ref().filter(|csi| csi.driver == driver)?;
        if volume.annotations().get(PROVISIONED_BY).is_some_and(|by| by != driver) {
            return None;
        }
        Some(Self {
            name: volume.name_any(),
            uid: volume.uid().unwrap_or_default(),
            version: volume.resource_version().unwrap_or_default(),
            finalizers: volume.finalizers().to_vec(),
            is_deleting: volume.meta().deletion_timestamp.is_some(),
            phase: volume.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default(),
            reclaim_policy: spec.persistent_volume_reclaim_policy.clone().unwrap_or_default(),
            handle: csi.volume_handle.clone(),
            is_block: spec.volume_mode.as_deref() == Some("Block"),
            class: spec.storage_class_name.clone().unwrap_or_default(),
            claim: spec.claim_ref.as_ref().and_then(ClaimReference::from_reference),
            deletion_secret: DeletionSecret::from_object(volume),
            is_finished: false,
        })
    }

    /// Returns what patches of its metadata need.
    pub(crate) fn metadata(&self) -> ObjectMeta {
        ObjectMeta {
            name: Some(self.name.clone()),
            uid: Some(self.uid.clone()),
            resource_version: Some(self.version.clone()),
            finalizers: Some(self.finalizers.clone()),
            ..ObjectMeta::default()
        }
    }

    /// Returns whether it has the finalizer of the provisioner.
    pub(crate) fn has_finalizer(&self) -> bool {
        has_finalizer(&self.metadata(), VOLUME_FINALIZER)
    }

    /// Returns the reference to it for Events.
    pub(crate) fn reference(&self) -> ObjectReference {
        ObjectReference {
            api_version: Some(PersistentVolume::api_version(&()).into_owned()),
            kind: Some(PersistentVolume::kind(&()).into_owned()),
            name: Some(self.name.clone()),
            uid: Some(self.uid.clone()),
            ..ObjectReference::default()
        }
    }
}

impl ClaimReference {
    fn from_reference(reference: &ObjectReference) -> Option<Self> {
        Some(Self {
            namespace: reference.namespace.clone()?,
            name: reference.name.clone()?,
            uid: reference.uid.clone().unwrap_or_default(),
        })
    }
}

impl DeletionSecret {
    fn from_object(volume: &PersistentVolume) -> Self {
        match DELETION_SECRET.map(|key| volume.annotations().get(key)) {
            [Some(name), Some(namespace)] if !name.is_empty() && !namespace.is_empty() => {
                Self::Named(SecretReference { name: Some(name.clone()), namespace: Some(namespace.clone()) })
            }
            [Some(_), Some(_)] => Self::None,
            _ => Self::OfClass,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "callers write the JSON in the call")]
    fn volume(annotations: Value) -> PersistentVolume {
        let object = json!({
            "metadata": {"name": "a", "annotations": annotations},
            "spec": {"csi": {"driver": "d", "volumeHandle": "id-a"}},
        });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn deletion_secret_is_that_of_the_annotations() {
        let secret = |annotations| KnownVolume::from_object("d", &volume(annotations)).unwrap().deletion_secret;
        let [name, namespace] = DELETION_SECRET;
        assert_eq!(secret(json!({})), DeletionSecret::OfClass);
        assert_eq!(secret(json!({name: "", namespace: ""})), DeletionSecret::None);
        let named = SecretReference { name: Some("a".to_owned()), namespace: Some("b".to_owned()) };
        assert_eq!(secret(json!({name: "a", namespace: "b"})), DeletionSecret::Named(named));
    }
}
