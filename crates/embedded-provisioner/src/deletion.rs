//! Deletes the volumes of released PersistentVolumes, and maintains the finalizer that keeps a PersistentVolume until
//! then.
//!
//! Whether a pod still uses a volume need not be checked: a PersistentVolume is not released before its claim is gone,
//! and this driver has no attachments.

use std::collections::HashMap;

use csi_calls::CallError;
use json_patch::PatchOperation;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::Api;
use kube::api::{DeleteParams, ObjectMeta, PatchParams, Preconditions};
use topolvm_api::CREATED_BY;
use topolvm_kube::{ReconcileError, add_finalizer, json_patch, none_if_deleted, none_if_not_found, remove_finalizers};
use topolvm_runtime::error_chain;

use crate::Provisioner;
use crate::error::PrepareError;
use crate::known_volume::{DeletionSecret, KnownVolume, VOLUME_FINALIZER};
use crate::secret_reference::{PROVISIONER, SecretError};

/// A PersistentVolume could not be deleted, or its finalizer not be changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DeleteError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("the Secret for the deletion is not known")]
    Secret(#[from] SecretError),
    #[error(transparent)]
    Api(#[from] ReconcileError),
}

impl Provisioner {
    /// Does for a PersistentVolume what is due.
    pub(crate) async fn reconcile_volume(&self, name: &str) -> Result<(), DeleteError> {
        let Some(volume) = self.volumes.get(name).filter(|volume| !volume.is_finished) else { return Ok(()) };
        let operations = finalizer_change(&volume);
        if !operations.is_empty() {
            // The watch shows the result
            self.patch(&volume, operations).await?;
            return Ok(());
        }
        if !is_deletion_due(&volume) {
            return Ok(());
        }
        if let Err(error) = self.delete_volume(&volume).await {
            let note = error_chain(&error);
            self.context.events.publish_warning(&volume.reference(), "VolumeFailedDelete", "Delete", note).await;
            return Err(error);
        }
        self.delete_object(&volume).await?;
        self.volumes.set_finished(&volume);
        tracing::info!(volume = name, "deleted a volume");
        Ok(())
    }

    async fn delete_volume(&self, volume: &KnownVolume) -> Result<(), DeleteError> {
        let secrets = self.deletion_secrets(volume).await?;
        Ok(self.csi.delete_volume(&volume.handle, secrets).await?)
    }

    /// Returns the secrets for the deletion. Without the Secret, which may have been deleted, the driver decides.
    async fn deletion_secrets(&self, volume: &KnownVolume) -> Result<HashMap<String, String>, DeleteError> {
        let reference = match &volume.deletion_secret {
            DeletionSecret::None => None,
            DeletionSecret::Named(reference) => Some(reference.clone()),
            DeletionSecret::OfClass => match (self.classes.get(&volume.class), &volume.claim) {
                (Some(class), Some(claim)) => {
                    let metadata = ObjectMeta {
                        name: Some(claim.name.clone()),
                        namespace: Some(claim.namespace.clone()),
                        ..ObjectMeta::default()
                    };
                    let claim = PersistentVolumeClaim { metadata, ..PersistentVolumeClaim::default() };
                    PROVISIONER.resolve(&class, &volume.name, &claim)?
                }
                _ => None,
            },
        };
        match self.preparation.read_secret(reference.as_ref()).await {
            Ok(secrets) => Ok(secrets),
            Err(PrepareError::Api(error)) if !error.is_forbidden() => Err(error.into()),
            Err(error) => {
                tracing::warn!(
                    volume = volume.name,
                    error = error_chain(&error),
                    "deleting a volume without its Secret"
                );
                Ok(HashMap::new())
            }
        }
    }

    /// Deletes the PersistentVolume of a deleted volume. The finalizer goes first: while the object is being deleted,
    /// Kubernetes removes another one.
    async fn delete_object(&self, volume: &KnownVolume) -> Result<(), ReconcileError> {
        let operations = remove_finalizers(&volume.metadata(), &[VOLUME_FINALIZER]);
        if !operations.is_empty() && !self.patch(volume, operations).await? {
            return Ok(());
        }
        if volume.is_deleting {
            return Ok(());
        }
        let exactly = Preconditions { uid: Some(volume.uid.clone()), resource_version: None };
        let params = DeleteParams::default().preconditions(exactly);
        let deleted = none_if_deleted(self.volume_api().delete(&volume.name, &params).await);
        deleted.map(drop).map_err(ReconcileError::api("delete PersistentVolume", &volume.name))
    }

    /// Patches a PersistentVolume, and returns whether it exists.
    async fn patch(&self, volume: &KnownVolume, operations: Vec<PatchOperation>) -> Result<bool, ReconcileError> {
        let params = PatchParams { field_manager: Some(CREATED_BY.to_owned()), ..PatchParams::default() };
        let patched = self.volume_api().patch(&volume.name, &params, &json_patch(operations)).await;
        let found = none_if_not_found(patched).map_err(ReconcileError::api("patch PersistentVolume", &volume.name))?;
        Ok(found.is_some())
    }

    fn volume_api(&self) -> Api<PersistentVolume> {
        Api::all(self.context.client.clone())
    }
}

/// Returns the patch that gives the PersistentVolume the finalizer that its reclaim policy needs.
fn finalizer_change(volume: &KnownVolume) -> Vec<PatchOperation> {
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
fn is_deletion_due(volume: &KnownVolume) -> bool {
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
        assert_eq!(is_deletion_due(&volume(policy, phase, has_finalizer, is_deleting)), is_due);
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
        assert_eq!(!finalizer_change(&volume(policy, phase, has_finalizer, is_deleting)).is_empty(), is_changed);
    }
}
