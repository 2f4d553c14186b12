//! Creates the volumes of claims, and their PersistentVolumes.
//!
//! An attempt whose outcome is not known is repeated as it is until it is known: nothing else shows whether there is a
//! volume. The claim, its StorageClass and its node may be gone by then; Kubernetes releases the PersistentVolume of a
//! deleted claim, and so its volume is deleted. A claim is held meanwhile, so that the next process continues where
//! this one ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use kube::api::{PatchParams, PostParams};
use kube::{Api, Resource as _, ResourceExt as _};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use topolvm_api::claim::{full_name, selected_node, storage_class, volume_name as bound_volume};
use topolvm_api::{CREATED_BY, SELECTED_NODE};
use topolvm_kube::{ReconcileError, json_patch, none_if_not_found, remove_annotation};
use topolvm_proto::csi::Volume;
use topolvm_runtime::error_chain;

use crate::Provisioner;
use crate::attempt::Attempt;
use crate::create_failure::CreateFailure;
use crate::error::PrepareError;
use crate::held_claims::is_held;
use crate::pending_claims::PendingClaim;
use crate::persistent_volume::build_persistent_volume;
use crate::preparation::Prepared;
use crate::storage_classes::waits_for_consumer;
use crate::volume_request::volume_name;
use csi_calls::{CallError, Capabilities, Secrets};

/// DeleteVolume calls for a volume that does not fit its request.
const CLEANUP_ATTEMPTS: usize = 5;

/// The claim has no PersistentVolume yet.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProvisionError {
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error(transparent)]
    Api(#[from] ReconcileError),
    #[error("the new volume has {bytes} bytes and not the requested {requested}; {cleanup}")]
    TooSmall { bytes: i64, requested: i64, cleanup: Cleanup },
    #[error("the driver has created an empty volume instead of a copy; {0}")]
    NotCopied(Cleanup),
    #[error("PersistentVolume {0} exists and is not of this claim; delete it, or create the claim again")]
    NameTaken(String),
}

/// Outcome of the deletion of a volume that does not fit its request.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Cleanup {
    #[error("it was deleted")]
    Deleted,
    #[error("it could not be deleted: {0}")]
    Failed(CallError),
}

/// Memory of claims whose provisioning has begun, by UID.
#[derive(Default)]
pub(crate) struct Progress {
    claims: Mutex<HashMap<String, ClaimProgress>>,
    /// Changes with each refusal.
    refusals: watch::Sender<()>,
}

#[derive(Default)]
struct ClaimProgress {
    /// The attempt whose outcome is not known.
    attempt: Option<Arc<Attempt>>,
    refusal: Option<Refusal>,
}

/// A refusal that is the same as long as the StorageClass is.
#[derive(Clone, Debug)]
struct Refusal {
    until: Instant,
    class_uid: Option<String>,
}

impl Progress {
    /// Returns the UIDs of claims with an attempt whose outcome is not known.
    pub(crate) fn unfinished(&self) -> Vec<String> {
        let claims = self.claims.lock();
        claims.iter().filter(|(_, claim)| claim.attempt.is_some()).map(|(uid, _)| uid.clone()).collect()
    }

    fn attempt(&self, uid: &str) -> Option<Arc<Attempt>> {
        self.claims.lock().get(uid)?.attempt.clone()
    }

    /// Notes that provisioning begins, and returns whether it has not begun before.
    fn begin(&self, uid: &str) -> bool {
        let mut is_new = false;
        self.claims.lock().entry(uid.to_owned()).or_insert_with(|| {
            is_new = true;
            ClaimProgress::default()
        });
        is_new
    }

    fn set_attempt(&self, uid: &str, attempt: Option<Arc<Attempt>>) {
        self.claims.lock().entry(uid.to_owned()).or_default().attempt = attempt;
    }

    fn refuse(&self, uid: &str, class_uid: Option<String>, pause: Duration) {
        let refusal = Refusal { until: Instant::now() + pause, class_uid };
        *self.claims.lock().entry(uid.to_owned()).or_default() =
            ClaimProgress { attempt: None, refusal: Some(refusal) };
        self.refusals.send_replace(());
    }

    /// Waits until refusals have ended, and returns the UIDs of their claims.
    async fn next_retries(&self) -> Vec<String> {
        let mut refusals = self.refusals.subscribe();
        loop {
            refusals.mark_unchanged();
            let pauses: Vec<_> = {
                let claims = self.claims.lock();
                claims.iter().filter_map(|(uid, claim)| Some((uid.clone(), claim.refusal.as_ref()?.until))).collect()
            };
            let now = Instant::now();
            let ended: Vec<_> = pauses.iter().filter(|(_, until)| *until <= now).map(|(uid, _)| uid.clone()).collect();
            if !ended.is_empty() {
                let mut claims = self.claims.lock();
                for uid in &ended {
                    claims.entry(uid.clone()).or_default().refusal = None;
                }
                return ended;
            }
            let next = pauses.iter().map(|(_, until)| *until).min();
            tokio::select! {
                // The sender is this
                _ = refusals.changed() => {}
                () = sleep_until(next) => {}
            }
        }
    }

    fn is_refused(&self, uid: &str, class_uid: Option<&String>) -> bool {
        let claims = self.claims.lock();
        let refusal = claims.get(uid).and_then(|claim| claim.refusal.as_ref());
        refusal.is_some_and(|refusal| refusal.until > Instant::now() && refusal.class_uid.as_ref() == class_uid)
    }

    /// Forgets a claim that is done with.
    fn forget(&self, uid: &str) {
        self.claims.lock().remove(uid);
    }
}

impl Provisioner {
    /// Creates the volume of a claim if it needs one, or continues an attempt.
    pub(crate) async fn reconcile_claim(&self, uid: &str, announced: Capabilities) -> Result<(), ProvisionError> {
        let attempt = match self.progress.attempt(uid) {
            Some(unfinished) => unfinished,
            None => match self.begin(uid, announced).await? {
                Some(attempt) => attempt,
                None => return Ok(()),
            },
        };
        match self.csi.create_volume(attempt.request.clone()).await {
            Ok(volume) => self.finish(&attempt, volume).await,
            Err(error) => self.fail(&attempt, error).await,
        }
    }

    /// Queues claims again whose requests were refused, each after the longest interval.
    pub(crate) async fn retry_refused(&self) {
        loop {
            for uid in self.progress.next_retries().await {
                self.claims.enqueue(&uid);
            }
        }
    }

    /// Begins an attempt, if the claim needs a volume now.
    async fn begin(&self, uid: &str, announced: Capabilities) -> Result<Option<Arc<Attempt>>, ProvisionError> {
        let Some(pending) = self.claims.get(uid) else {
            self.progress.forget(uid);
            return Ok(None);
        };
        let claim = &pending.object;
        if bound_volume(claim).is_some() {
            self.unhold(uid).await?;
            return Ok(None);
        }
        let is_deleting = claim.meta().deletion_timestamp.is_some();
        // An earlier process may have created a volume, which only the same request shows
        let is_left = is_deleting && is_held(claim);
        let Some(class) = storage_class(claim).and_then(|class| self.classes.get(class)) else {
            // A StorageClass that appears later queues its claims
            if is_left {
                self.abandon(claim, "its StorageClass does not exist").await?;
            }
            return Ok(None);
        };
        let is_selected = selected_node(claim).is_some_and(|node| !node.is_empty());
        let waits = is_deleting || (waits_for_consumer(&class) && !is_selected);
        if waits && !is_held(claim) {
            return Ok(None);
        }
        let name = volume_name(&self.settings.provisioner_volume_name_prefix, uid);
        if pending.is_provisioned || self.has_volume(&pending, &name).await? {
            self.claims.set_provisioned(uid, true);
            self.unhold(uid).await?;
            return Ok(None);
        }
        if waits && !is_left {
            return Ok(None);
        }
        if self.progress.is_refused(uid, class.metadata.uid.as_ref()) {
            return Ok(None);
        }
        let is_new = self.progress.begin(uid);
        let prepare = self.preparation.prepare(claim.clone(), class.clone(), name, announced);
        let announce = async {
            if is_new {
                let note = format!("creating a volume for claim {}", full_name(claim));
                self.publish_normal(claim, "Provisioning", note).await;
            }
        };
        match tokio::join!(Box::pin(prepare), announce).0 {
            Ok(Prepared::Attempt(attempt)) => {
                let attempt = Arc::from(attempt);
                // Before the call: this process may end, or lose its Lease, in the middle
                self.progress.set_attempt(uid, Some(Arc::clone(&attempt)));
                Ok(Some(attempt))
            }
            Ok(Prepared::LeftToPopulator(kind)) => {
                let note = format!("no volume is created here: the volume populator for {kind} does it");
                self.publish_normal(claim, "Provisioning", note).await;
                Ok(None)
            }
            Err(error) => {
                self.publish_failure(claim, &class.name_any(), error_chain(&error)).await;
                if is_left && !matches!(error, PrepareError::Api(_)) {
                    self.abandon(claim, &error_chain(&error)).await?;
                    return Ok(None);
                }
                if error.needs_other_node() {
                    self.deselect_node(claim).await?;
                    return Ok(None);
                }
                if error.is_permanent() {
                    let pause = self.settings.provisioner_retry_interval_max;
                    self.progress.refuse(uid, class.metadata.uid.clone(), pause);
                }
                Err(error.into())
            }
        }
    }

    /// Releases a deleted claim for which the request of an earlier process cannot be repeated.
    async fn abandon(&self, claim: &PersistentVolumeClaim, reason: &str) -> Result<(), ReconcileError> {
        let volume = claim.meta().uid.as_deref().unwrap_or_default();
        let volume = volume_name(&self.settings.provisioner_volume_name_prefix, volume);
        tracing::warn!(
            claim = full_name(claim),
            reason,
            "cannot find out whether there is a volume of a deleted claim; delete LogicalVolume {volume} if it exists"
        );
        self.unhold(claim.meta().uid.as_deref().unwrap_or_default()).await
    }

    /// Returns whether the PersistentVolume of a claim exists. If an earlier process may have begun with the claim, the
    /// API server is asked.
    async fn has_volume(&self, claim: &PendingClaim, name: &str) -> Result<bool, ReconcileError> {
        if self.volumes.get(name).is_some() {
            return Ok(true);
        }
        Ok(claim.is_old && self.read_volume(name).await?.is_some())
    }

    async fn read_volume(&self, name: &str) -> Result<Option<PersistentVolume>, ReconcileError> {
        let api: Api<PersistentVolume> = Api::all(self.context.client.clone());
        none_if_not_found(api.get(name).await).map_err(ReconcileError::api("read PersistentVolume", name))
    }

    /// Saves the PersistentVolume of a created volume, if the volume is what was requested.
    async fn finish(&self, attempt: &Arc<Attempt>, volume: Volume) -> Result<(), ProvisionError> {
        let result = match self.check_volume(attempt, &volume).await {
            Ok(()) => self.save(attempt, volume).await,
            Err(error) => Err(error),
        };
        if let Err(error) = result {
            // The same call finds the volume again, or creates it again where it was deleted
            self.hold(attempt.uid()).await;
            self.publish_failure(&attempt.claim, &attempt.class_name(), error_chain(&error)).await;
            return Err(error);
        }
        let (uid, name) = (attempt.uid(), &attempt.request.name);
        self.claims.set_provisioned(uid, true);
        self.progress.forget(uid);
        // It is repeated with the PersistentVolume found
        self.unhold(uid).await?;
        tracing::info!(claim = full_name(&attempt.claim), volume = name, "provisioned a volume");
        let note = format!("Successfully provisioned volume {name}");
        let release = self.release_source(attempt);
        tokio::join!(self.publish_normal(&attempt.claim, "ProvisioningSucceeded", note), release);
        Ok(())
    }

    /// Deletes a volume that is not what was requested.
    async fn check_volume(&self, attempt: &Attempt, volume: &Volume) -> Result<(), ProvisionError> {
        let requested = attempt.request.capacity_range.map_or(0, |range| range.required_bytes);
        let bytes = volume.capacity_bytes;
        let is_small = bytes != 0 && bytes < requested;
        let is_empty = attempt.request.volume_content_source.is_some() && volume.content_source.is_none();
        if !is_small && !is_empty {
            return Ok(());
        }
        let cleanup = match self.clean_up(&volume.volume_id, &attempt.request.secrets).await {
            Ok(()) => Cleanup::Deleted,
            Err(error) => Cleanup::Failed(error),
        };
        Err(if is_small {
            ProvisionError::TooSmall { bytes, requested, cleanup }
        } else {
            ProvisionError::NotCopied(cleanup)
        })
    }

    /// Deletes a volume that does not fit its request, in several attempts.
    async fn clean_up(&self, id: &str, secrets: &Secrets) -> Result<(), CallError> {
        let mut result = Ok(());
        for _ in 0..CLEANUP_ATTEMPTS {
            result = self.csi.delete_volume(id, secrets.clone()).await;
            if result.is_ok() {
                break;
            }
        }
        result
    }

    /// Creates the PersistentVolume. One that exists with this claim was created by an earlier request.
    async fn save(&self, attempt: &Attempt, volume: Volume) -> Result<(), ProvisionError> {
        let object = build_persistent_volume(&self.context.driver, &self.context.identity, attempt, volume);
        let params = PostParams { field_manager: Some(CREATED_BY.to_owned()), ..PostParams::default() };
        let name = &attempt.request.name;
        match Api::<PersistentVolume>::all(self.context.client.clone()).create(&params, &object).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 409 => {
                let existing = self.read_volume(name).await?;
                let claim = existing.and_then(|existing| existing.spec?.claim_ref?.uid);
                if claim.as_deref() == Some(attempt.uid()) {
                    return Ok(());
                }
                Err(ProvisionError::NameTaken(name.clone()))
            }
            Err(error) => Err(ReconcileError::api("create PersistentVolume", name)(error).into()),
        }
    }

    /// Handles a failed call as its code says.
    async fn fail(&self, attempt: &Arc<Attempt>, error: CallError) -> Result<(), ProvisionError> {
        let (claim, uid) = (&attempt.claim, attempt.uid());
        let failure = CreateFailure::from(&error);
        match failure {
            CreateFailure::InBackground => self.hold(uid).await,
            CreateFailure::Infeasible => {
                let pause = self.settings.provisioner_retry_interval_max;
                self.progress.refuse(uid, attempt.class.metadata.uid.clone(), pause);
            }
            CreateFailure::Exhausted | CreateFailure::Final => self.progress.set_attempt(uid, None),
        }
        self.publish_failure(claim, &attempt.class_name(), error_chain(&error)).await;
        if failure != CreateFailure::InBackground {
            self.unhold(uid).await?;
        }
        if failure == CreateFailure::Exhausted && attempt.selected_node().is_some() {
            self.deselect_node(claim).await?;
            return Ok(());
        }
        Err(error.into())
    }

    /// Makes the scheduler select a node again, unless it has done so meanwhile.
    async fn deselect_node(&self, claim: &PersistentVolumeClaim) -> Result<(), ReconcileError> {
        let Some(node) = selected_node(claim) else { return Ok(()) };
        let operations = remove_annotation(claim.meta(), SELECTED_NODE, node);
        let api: Api<PersistentVolumeClaim> =
            Api::namespaced(self.context.client.clone(), &claim.namespace().unwrap_or_default());
        let params = PatchParams { field_manager: Some(CREATED_BY.to_owned()), ..PatchParams::default() };
        match api.patch(&claim.name_any(), &params, &json_patch(operations)).await {
            Ok(deselected) => {
                self.claims.note_written(&deselected);
                Ok(())
            }
            // It has another node or none by now, or is gone
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => Ok(()),
            Err(error) => Err(ReconcileError::api("deselect the node of claim", full_name(claim))(error)),
        }
    }

    async fn publish_normal(&self, claim: &PersistentVolumeClaim, reason: &str, note: String) {
        self.context.events.publish_normal(&reference(claim), reason, "Provision", note).await;
    }

    async fn publish_failure(&self, claim: &PersistentVolumeClaim, class: &str, error: String) {
        let note = format!("failed to provision volume with StorageClass {class:?}: {error}");
        self.context.events.publish_warning(&reference(claim), "ProvisioningFailed", "Provision", note).await;
    }
}

/// Sleeps until this time; indefinitely without one.
async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

fn reference(claim: &PersistentVolumeClaim) -> ObjectReference {
    claim.object_ref(&())
}
