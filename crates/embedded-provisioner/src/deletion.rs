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
use topolvm_kube::{ReconcileError, json_patch, none_if_deleted, none_if_not_found, remove_finalizers};
use topolvm_runtime::error_chain;

use crate::Provisioner;
use crate::error::PrepareError;
use crate::known_volume::{DeletionSecret, KnownVolume, VOLUME_FINALIZER};
use crate::secret_reference::{PROVISIONER, SecretError};
use crate::volume_step::{finalizer_change, is_deletion_due};

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
