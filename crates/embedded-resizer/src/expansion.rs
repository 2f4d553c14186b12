//! Expands the volume of a claim.
//!
//! The size is in the status of the claim before the driver is called, and the new capacity in the PersistentVolume
//! before the claim shows the outcome: after a crash the next leader repeats the same call.

use csi_calls::Expanded;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::ResourceExt as _;
use serde_json::json;
use tokio::time::Instant;
use topolvm_api::claim::volume_name;
use topolvm_api::{format_bytes, parse_bytes};

use crate::attempt::{Attempt, End};
use crate::call_failure::CallFailure;
use crate::claim_changes::{
    ClaimChange, expansion_failed, expansion_finished, expansion_in_progress, node_expansion_pending,
};
use crate::claim_sizes::{ClaimSizes, ResizeState, STORAGE};
use crate::error::OperationError;
use crate::expansion_step::{ExpansionStep, next_step};
use crate::objects::{ClaimVolume, Written};
use crate::pending_claims::Task;
use crate::volume_capability::volume_capability;

/// Action of Events.
const ACTION: &str = "Resize";
/// Reason of Events about failures.
const FAILED: &str = "VolumeResizeFailed";

/// An expansion that is in the status of the claim.
struct Begun {
    claim: PersistentVolumeClaim,
    bytes: u64,
    /// True if this attempt has written it.
    is_new: bool,
}

impl Attempt {
    /// Expands the volume of a claim until it has what it requests, or the kubelet has to go on.
    pub(crate) async fn expand(&self, task: &Task) -> Result<End, OperationError> {
        let Some((known, _)) = self.claims.get(task) else { return Ok(End::Done) };
        let mut claim = PersistentVolumeClaim::clone(&known);
        while ClaimSizes::from_claim(&claim).is_some_and(|sizes| sizes.requests_more()) {
            let Some(name) = volume_name(&claim) else { break };
            let volume = match self.objects.read_volume(&claim, name).await? {
                ClaimVolume::Own(volume) => volume,
                ClaimVolume::Unbound => break,
                ClaimVolume::Foreign => {
                    self.claims.mark_foreign(&task.claim, claim.metadata.uid.as_deref().unwrap_or_default());
                    break;
                }
            };
            let Some(begun) = self.begin_expansion(task, claim, &volume).await? else { break };
            if begun.is_new {
                let size = format_bytes(begun.bytes).0;
                let note = format!("expanding volume {} to {size}", volume.name_any());
                self.publish_normal(&begun.claim, "Resizing", ACTION, note).await;
            }
            match self.call_expand(&volume, begun.bytes).await {
                Ok(expanded) => {
                    self.record_success(task, &begun.claim);
                    match self.record_expansion(&volume, begun.claim.clone(), expanded).await {
                        // It may request more by now
                        Ok(Some(finished)) => claim = finished,
                        Ok(None) => break,
                        Err(error) => {
                            self.publish_error(&begun.claim, FAILED, ACTION, &error).await;
                            return Err(error);
                        }
                    }
                }
                Err(error) => return self.record_failed_expansion(task, begun.claim, error).await,
            }
        }
        Ok(End::Done)
    }

    /// Writes to the claim which size its volume gets, unless it is there. `None` if there is nothing to do for now.
    async fn begin_expansion(
        &self,
        task: &Task,
        mut claim: PersistentVolumeClaim,
        volume: &PersistentVolume,
    ) -> Result<Option<Begun>, OperationError> {
        let capacity = volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref()?.get(STORAGE));
        let volume_bytes = capacity.and_then(|size| parse_bytes(size).ok()).unwrap_or_default();
        // True when the claim was read in this attempt
        let mut is_current = false;
        loop {
            let attempts = self.claims.get(task).map(|(_, attempts)| attempts).unwrap_or_default();
            let Some(sizes) = ClaimSizes::from_claim(&claim) else { return Ok(None) };
            let ExpansionStep::Expand(bytes) = next_step(sizes, volume_bytes, attempts.has_failed) else {
                return Ok(None);
            };
            let is_new = sizes.allocated != Some(bytes);
            if !is_new && attempts.infeasible_until.is_some_and(|until| until > Instant::now()) {
                return Ok(None);
            }
            match self.objects.write_claim(&claim, expansion_in_progress(&claim, bytes, (self.now)())).await? {
                Written::Claim(written) => return Ok(Some(Begun { claim: *written, bytes, is_new })),
                Written::Unchanged if is_current => return Ok(Some(Begun { claim, bytes, is_new })),
                Written::Unchanged | Written::Conflict => match self.objects.read_claim(&claim).await? {
                    Some(read) => (claim, is_current) = (read, true),
                    None => return Ok(None),
                },
            }
        }
    }

    async fn call_expand(&self, volume: &PersistentVolume, bytes: u64) -> Result<Expanded, OperationError> {
        let missing = || OperationError::NoHandle(volume.name_any());
        let spec = volume.spec.as_ref().ok_or_else(missing)?;
        let source = spec.csi.as_ref().filter(|source| !source.volume_handle.is_empty()).ok_or_else(missing)?;
        let secrets = self.objects.read_secret(source.controller_expand_secret_ref.as_ref()).await?;
        let capability = volume_capability(spec, self.csi.capabilities().await?)?;
        let expanded = self.csi.expand_volume(&source.volume_handle, bytes, capability, secrets).await?;
        if expanded.bytes < bytes {
            return Err(OperationError::TooSmall { requested: bytes, bytes: expanded.bytes });
        }
        Ok(expanded)
    }

    /// Writes the new size to the PersistentVolume and then to the claim. Returns the claim if the kubelet has nothing
    /// to do.
    async fn record_expansion(
        &self,
        volume: &PersistentVolume,
        claim: PersistentVolumeClaim,
        Expanded { bytes, needs_node }: Expanded,
    ) -> Result<Option<PersistentVolumeClaim>, OperationError> {
        let name = volume.name_any();
        self.objects.write_volume(volume, json!({"capacity": {STORAGE: format_bytes(bytes)}})).await?;
        tracing::info!(volume = name, bytes, needs_node, "expanded the volume of a claim");
        if !needs_node {
            let finish = |claim: &PersistentVolumeClaim| expansion_finished(claim, bytes, (self.now)());
            let finished = self.objects.write_claim_in_any_version(claim, finish).await?;
            if let Some(claim) = &finished {
                let note = format!("volume {name} has {}", format_bytes(bytes).0);
                self.publish_normal(claim, "VolumeResizeSuccessful", ACTION, note).await;
            }
            return Ok(finished);
        }
        let wait = |claim: &PersistentVolumeClaim| match ClaimSizes::from_claim(claim) {
            // The kubelet has begun, or ended
            Some(sizes) if sizes.capacity >= bytes || sizes.state == Some(ResizeState::NodeInProgress) => {
                ClaimChange::default()
            }
            _ => node_expansion_pending(claim, (self.now)()),
        };
        if let Some(claim) = self.objects.write_claim_in_any_version(claim, wait).await? {
            let note = format!("volume {name} has {}; the kubelet grows its filesystem", format_bytes(bytes).0);
            self.publish_normal(&claim, "FileSystemResizeRequired", ACTION, note).await;
        }
        Ok(None)
    }

    /// Records a failed expansion in memory and in the claim.
    async fn record_failed_expansion(
        &self,
        task: &Task,
        claim: PersistentVolumeClaim,
        error: OperationError,
    ) -> Result<End, OperationError> {
        self.publish_error(&claim, FAILED, ACTION, &error).await;
        let OperationError::Call(call) = error else { return Err(error) };
        let failure = CallFailure::of_expansion(call.code());
        let is_infeasible = failure == CallFailure::Infeasible;
        if failure != CallFailure::Uncertain {
            let message = format!("cannot expand the volume: {call}");
            let fail = |claim: &PersistentVolumeClaim| expansion_failed(claim, &message, is_infeasible, (self.now)());
            self.objects.write_claim_in_any_version(claim.clone(), fail).await?;
        }
        self.record_failure(task, &claim, failure);
        if is_infeasible { Ok(End::Infeasible(call)) } else { Err(call.into()) }
    }
}
