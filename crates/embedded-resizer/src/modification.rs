//! Applies a VolumeAttributesClass to the volume of a claim.
//!
//! The class is in the status of the claim before the driver is called. While the outcome of the call is not known the
//! volume gets no other class.

use std::collections::HashMap;

use csi_calls::Secrets;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, SecretReference};
use kube::ResourceExt as _;
use serde_json::json;
use tokio::time::Instant;
use topolvm_api::claim::volume_name;

use crate::attempt::{Attempt, End};
use crate::call_failure::CallFailure;
use crate::claim_changes::{
    ClaimChange, ModifyFailure, modification_canceled, modification_failed, modification_finished,
    modification_in_progress, modification_pending,
};
use crate::error::OperationError;
use crate::modification_step::{ClaimClasses, ModificationStep, ModifyState};
use crate::objects::{ClaimVolume, Written};
use crate::pending_claims::Task;

/// Action of Events.
const ACTION: &str = "Modify";
/// Reason of Events about failures.
const FAILED: &str = "VolumeModifyFailed";
/// Annotations of a PersistentVolume that name a Secret for modifications.
const SECRET_NAME: &str = "volume.kubernetes.io/controller-modify-secret-name";
const SECRET_NAMESPACE: &str = "volume.kubernetes.io/controller-modify-secret-namespace";

/// A modification that is in the status of the claim.
struct Begun {
    claim: PersistentVolumeClaim,
    class: String,
    parameters: HashMap<String, String>,
    /// True if this attempt has written it.
    is_new: bool,
}

impl Attempt {
    /// Modifies the volume of a claim until it has the class that the claim requests.
    pub(crate) async fn modify(&self, task: &Task) -> Result<End, OperationError> {
        let Some((known, _)) = self.claims.get(task) else { return Ok(End::Done) };
        let mut claim = PersistentVolumeClaim::clone(&known);
        while ClaimClasses::from_claim(&claim).is_some_and(|classes| !classes.is_settled()) {
            let Some(name) = volume_name(&claim) else { break };
            let volume = match self.objects.read_volume(&claim, name).await? {
                ClaimVolume::Own(volume) => volume,
                ClaimVolume::Unbound => break,
                ClaimVolume::Foreign => {
                    self.claims.mark_foreign(&task.claim, claim.metadata.uid.as_deref().unwrap_or_default());
                    break;
                }
            };
            let Some(begun) = self.begin_modification(task, claim).await? else { break };
            let Begun { claim: begun_claim, class, parameters, is_new } = begun;
            if is_new {
                let note = format!("applying VolumeAttributesClass {class} to volume {}", volume.name_any());
                self.publish_normal(&begun_claim, "VolumeModify", ACTION, note).await;
            }
            match self.call_modify(&volume, parameters).await {
                Ok(()) => {
                    self.record_success(task, &begun_claim);
                    match self.record_modification(&volume, begun_claim, &class).await? {
                        // It may request another class by now
                        Some(finished) if has_class(&finished, &class) => claim = finished,
                        Some(_) | None => break,
                    }
                }
                Err(error) => return self.record_failed_modification(task, begun_claim, &class, error).await,
            }
        }
        Ok(End::Done)
    }

    /// Writes to the claim which class its volume gets, unless it is there. `None` if there is nothing to do for now.
    async fn begin_modification(
        &self,
        task: &Task,
        mut claim: PersistentVolumeClaim,
    ) -> Result<Option<Begun>, OperationError> {
        // True when the claim was read in this attempt
        let mut is_current = false;
        loop {
            let attempts = self.claims.get(task).map(|(_, attempts)| attempts).unwrap_or_default();
            let Some(classes) = ClaimClasses::from_claim(&claim) else { return Ok(None) };
            let is_paused = attempts.infeasible_until.is_some_and(|until| until > Instant::now());
            if is_paused && classes.is_infeasible() {
                return Ok(None);
            }
            let class = match classes.next_step(attempts.has_failed) {
                ModificationStep::Wait => return Ok(None),
                ModificationStep::Cancel => return self.cancel_modification(claim).await,
                ModificationStep::Continue(class) | ModificationStep::Begin(class) => class,
            };
            let parameters = match self.objects.read_class(&class).await {
                Ok(parameters) => parameters,
                Err(error) => return Err(self.record_wrong_class(claim, &classes, error).await),
            };
            match self.objects.write_claim(&claim, modification_in_progress(&claim, &class, (self.now)())).await? {
                Written::Claim(written) => {
                    return Ok(Some(Begun { claim: *written, class, parameters, is_new: true }));
                }
                Written::Unchanged if is_current => {
                    return Ok(Some(Begun { claim, class, parameters, is_new: false }));
                }
                Written::Unchanged | Written::Conflict => match self.objects.read_claim(&claim).await? {
                    Some(read) => (claim, is_current) = (read, true),
                    None => return Ok(None),
                },
            }
        }
    }

    /// Removes the condition of a modification that the claim does not request any more.
    async fn cancel_modification(&self, claim: PersistentVolumeClaim) -> Result<Option<Begun>, OperationError> {
        let cancel = |claim: &PersistentVolumeClaim| match ClaimClasses::from_claim(claim) {
            Some(classes) if classes.next_step(false) == ModificationStep::Cancel => {
                modification_canceled(claim, (self.now)())
            }
            _ => ClaimChange::default(),
        };
        if let Some(claim) = self.objects.write_claim_in_any_version(claim, cancel).await? {
            let note = "the claim requests no VolumeAttributesClass any more; the volume keeps its settings";
            self.publish_normal(&claim, "VolumeModifyCanceled", ACTION, note).await;
        }
        Ok(None)
    }

    /// Writes to a claim that the class which it requests cannot be applied yet. Returns the error, or that of writing.
    async fn record_wrong_class(
        &self,
        claim: PersistentVolumeClaim,
        classes: &ClaimClasses,
        error: OperationError,
    ) -> OperationError {
        self.publish_error(&claim, FAILED, ACTION, &error).await;
        let is_begun = matches!(&classes.status, Some((ModifyState::InProgress, _)));
        if !error.is_about_class() || is_begun {
            return error;
        }
        match self.objects.write_claim(&claim, modification_pending(&claim)).await {
            Ok(_) => error,
            Err(write) => write.into(),
        }
    }

    async fn call_modify(
        &self,
        volume: &PersistentVolume,
        parameters: HashMap<String, String>,
    ) -> Result<(), OperationError> {
        let source = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
        let source = source.filter(|source| !source.volume_handle.is_empty());
        let source = source.ok_or_else(|| OperationError::NoHandle(volume.name_any()))?;
        let own = own_secret(volume);
        let secrets: Secrets =
            self.objects.read_secret(own.as_ref().or(source.controller_expand_secret_ref.as_ref())).await?;
        Ok(self.csi.modify_volume(&source.volume_handle, parameters, secrets).await?)
    }

    /// Writes the class to the PersistentVolume and then to the claim. Returns the claim as it is then.
    async fn record_modification(
        &self,
        volume: &PersistentVolume,
        claim: PersistentVolumeClaim,
        class: &str,
    ) -> Result<Option<PersistentVolumeClaim>, OperationError> {
        let name = volume.name_any();
        self.objects.write_volume(volume, json!({"volumeAttributesClassName": class})).await?;
        tracing::info!(volume = name, class, "applied a VolumeAttributesClass");
        let finish = |claim: &PersistentVolumeClaim| modification_finished(claim, class, (self.now)());
        let finished = self.objects.write_claim_in_any_version(claim, finish).await?;
        if let Some(claim) = &finished {
            let note = format!("volume {name} has VolumeAttributesClass {class}");
            self.publish_normal(claim, "VolumeModifySuccessful", ACTION, note).await;
        }
        Ok(finished)
    }

    /// Records a failed modification in memory and in the claim.
    async fn record_failed_modification(
        &self,
        task: &Task,
        claim: PersistentVolumeClaim,
        class: &str,
        error: OperationError,
    ) -> Result<End, OperationError> {
        self.publish_error(&claim, FAILED, ACTION, &error).await;
        let OperationError::Call(call) = error else { return Err(error) };
        let failure = CallFailure::of_modification(call.code());
        let is_infeasible = failure == CallFailure::Infeasible;
        let shown = ModifyFailure {
            code: call.code_name(),
            message: call.message(),
            is_final: failure != CallFailure::Uncertain,
            is_infeasible,
        };
        let fail = |claim: &PersistentVolumeClaim| modification_failed(claim, class, &shown, (self.now)());
        self.objects.write_claim_in_any_version(claim.clone(), fail).await?;
        self.record_failure(task, &claim, failure);
        if is_infeasible { Ok(End::Infeasible(call)) } else { Err(call.into()) }
    }
}

/// Returns whether the API server has stored the class of a volume in its claim.
fn has_class(claim: &PersistentVolumeClaim, class: &str) -> bool {
    ClaimClasses::from_claim(claim).is_some_and(|classes| classes.current == class)
}

/// Returns the Secret for modifications that a PersistentVolume names.
fn own_secret(volume: &PersistentVolume) -> Option<SecretReference> {
    let value = |key: &str| volume.annotations().get(key).filter(|value| !value.is_empty()).cloned();
    Some(SecretReference { name: Some(value(SECRET_NAME)?), namespace: Some(value(SECRET_NAMESPACE)?) })
}
