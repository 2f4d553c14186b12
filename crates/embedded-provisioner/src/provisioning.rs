//! Creates the volumes of claims, and their PersistentVolumes.
//!
//! An attempt whose outcome is not known is repeated as it is until it is known: nothing else shows whether there is a
//! volume. The claim, its StorageClass and its node may be gone by then; Kubernetes releases the PersistentVolume of a
//! deleted claim, and so its volume is deleted. A claim is held meanwhile, so that the next process continues where
//! this one ends.

use std::sync::Arc;

use csi_calls::{CallError, Capabilities, CsiController};
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{PatchParams, PostParams};
use kube::{Api, Resource as _, ResourceExt as _};
use topolvm_api::claim::{full_name, selected_node, storage_class, volume_name as bound_volume};
use topolvm_api::{CREATED_BY, SELECTED_NODE};
use topolvm_kube::{ReconcileError, json_patch, none_if_not_found, remove_annotation};
use topolvm_proto::csi::Volume;
use topolvm_runtime::error_chain;

use crate::Provisioner;
use crate::attempt::Attempt;
use crate::create_failure::CreateFailure;
use crate::error::PrepareError;
use crate::known_volume::KnownVolume;
use crate::next_step::{Facts, Step};
use crate::pending_claims::PendingClaim;
use crate::persistent_volume::build_persistent_volume;
use crate::preparation::Prepared;
use crate::progress::{Failure, Stage};
use crate::volume_request::volume_name;

/// DeleteVolume calls for a volume that the claim cannot use.
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
    #[error(
        "PersistentVolume {name} exists and is not of this claim; delete it, or create the claim again. The new \
         volume: {cleanup}"
    )]
    NameTakenMeanwhile { name: String, cleanup: Cleanup },
}

/// Outcome of the deletion of a volume that the claim cannot use.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Cleanup {
    #[error("it was deleted")]
    Deleted,
    #[error("it was kept, because PersistentVolume {0} refers to it")]
    Kept(String),
    #[error("it could not be deleted: {0}")]
    Failed(CallError),
}

impl Provisioner {
    /// Creates the volume of a claim if it needs one, or continues an attempt.
    pub(crate) async fn reconcile_claim(&self, uid: &str, announced: Capabilities) -> Result<(), ProvisionError> {
        let attempt = match self.context.progress.stage(uid) {
            Some(Stage::Failed(failure)) => {
                self.report(&failure).await;
                self.conclude(&failure).await?;
                // The claim may have changed meanwhile
                self.claims.enqueue(uid);
                return Ok(());
            }
            Some(Stage::Open(attempt)) => attempt,
            Some(Stage::Begun | Stage::Refused(_)) | None => match self.begin(uid, announced).await? {
                Some(attempt) => attempt,
                None => return Ok(()),
            },
        };
        match self.csi.create_volume(attempt.request.clone()).await {
            Ok(volume) => Box::pin(self.finish(&attempt, volume)).await,
            Err(error) if CreateFailure::from(&error) == CreateFailure::InBackground => {
                self.hold(uid).await;
                self.publish_failure(&attempt, error_chain(&error)).await;
                Err(error.into())
            }
            Err(error) => {
                let failure = Arc::new(Failure::new(attempt, error));
                // Before all else: this process may lose its Lease, and must not make the same call again then
                self.context.progress.set(uid, Stage::Failed(Arc::clone(&failure)));
                self.report(&failure).await;
                self.unhold(uid).await?;
                self.conclude(&failure).await
            }
        }
    }

    /// Queues claims again whose requests were refused, each after the longest interval.
    pub(crate) async fn retry_refused(&self) {
        loop {
            for uid in self.context.progress.next_retries().await {
                self.claims.enqueue(&uid);
            }
        }
    }

    /// Begins an attempt, if the claim needs a volume now.
    async fn begin(&self, uid: &str, announced: Capabilities) -> Result<Option<Arc<Attempt>>, ProvisionError> {
        let Some(pending) = self.claims.get(uid) else {
            self.context.progress.forget(uid);
            return Ok(None);
        };
        let Some(claim) = self.current(pending).await? else { return Ok(None) };
        let name = volume_name(&self.settings.provisioner_volume_name_prefix, uid);
        let class = storage_class(&claim).and_then(|class| self.classes.get(class));
        let class_uid = class.as_ref().and_then(|class| class.metadata.uid.as_ref());
        let is_refused = self.context.progress.is_refused(uid, class_uid);
        let facts = Facts { claim: &claim, name: self.volumes.name_owner(&name, uid), is_refused, class };
        match facts.next_step() {
            Step::Wait => {}
            Step::Release => self.unhold(uid).await?,
            Step::Create(class) => match self.prepare(&claim, &class, name, announced).await {
                Ok(attempt) => return Ok(attempt),
                Err(error) => self.decline(&claim, &class, error).await?,
            },
            Step::Repeat(class) => match self.prepare(&claim, &class, name.clone(), announced).await {
                Ok(attempt) => return Ok(attempt),
                Err(error) if error.is_temporary() => return Err(error.into()),
                Err(error) => self.abandon(&claim, &name, &error_chain(&error)).await?,
            },
            Step::Abandon => self.abandon(&claim, &name, "its StorageClass does not exist").await?,
            Step::ReportTakenName => {
                let error = ProvisionError::NameTaken(name);
                self.publish_warning(&claim, storage_class(&claim).unwrap_or_default(), error_chain(&error)).await;
                return Err(error);
            }
        }
        Ok(None)
    }

    /// Returns a claim that waits. One that has lost its volume is read, because it may have been bound and deleted
    /// before its watch shows that: that of PersistentVolumes may be ahead of it.
    async fn current(&self, pending: PendingClaim) -> Result<Option<Arc<PersistentVolumeClaim>>, ReconcileError> {
        let PendingClaim { object, has_lost_volume } = pending;
        if !has_lost_volume {
            return Ok(Some(object));
        }
        let namespace = object.namespace().unwrap_or_default();
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.context.client.clone(), &namespace);
        let found = none_if_not_found(api.get(&object.name_any()).await);
        let found = found.map_err(ReconcileError::api("read claim", full_name(&object)))?;
        let waiting = found.filter(|claim| claim.uid() == object.uid() && bound_volume(claim).is_none());
        if let Some(claim) = &waiting {
            self.claims.note_read(claim);
        }
        Ok(waiting.map(Arc::new))
    }

    /// Prepares an attempt, and reports that it begins and that it cannot. Returns nothing if a volume populator makes
    /// the volume.
    async fn prepare(
        &self,
        claim: &Arc<PersistentVolumeClaim>,
        class: &Arc<StorageClass>,
        name: String,
        announced: Capabilities,
    ) -> Result<Option<Arc<Attempt>>, PrepareError> {
        let uid = claim.metadata.uid.as_deref().unwrap_or_default();
        let is_new = self.context.progress.stage(uid).is_none();
        if is_new {
            self.context.progress.set(uid, Stage::Begun);
        }
        let prepare = self.preparation.prepare(Arc::clone(claim), Arc::clone(class), name, announced);
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
                self.context.progress.set(uid, Stage::Open(Arc::clone(&attempt)));
                Ok(Some(attempt))
            }
            Ok(Prepared::LeftToPopulator(kind)) => {
                let note = format!("no volume is created here: the volume populator for {kind} does it");
                self.publish_normal(claim, "Provisioning", note).await;
                Ok(None)
            }
            Err(error) => {
                self.publish_warning(claim, &class.name_any(), error_chain(&error)).await;
                Err(error)
            }
        }
    }

    /// Does what follows when no volume can be requested.
    async fn decline(
        &self,
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
        error: PrepareError,
    ) -> Result<(), ProvisionError> {
        if error.needs_other_node() {
            return Ok(self.deselect_node(claim).await?);
        }
        if error.is_permanent() {
            let uid = claim.metadata.uid.as_deref().unwrap_or_default();
            let pause = self.settings.provisioner_retry_interval_max;
            self.context.progress.refuse(uid, class.metadata.uid.clone(), pause);
        }
        Err(error.into())
    }

    /// Releases a deleted claim for which the request of an earlier process cannot be repeated.
    async fn abandon(&self, claim: &PersistentVolumeClaim, volume: &str, reason: &str) -> Result<(), ReconcileError> {
        tracing::warn!(
            claim = full_name(claim),
            reason,
            "cannot find out whether there is a volume of a deleted claim; delete LogicalVolume {volume} if it exists"
        );
        self.unhold(claim.metadata.uid.as_deref().unwrap_or_default()).await
    }

    /// Saves the PersistentVolume of a created volume, if the volume is what was requested.
    async fn finish(&self, attempt: &Arc<Attempt>, volume: Volume) -> Result<(), ProvisionError> {
        let (uid, name) = (attempt.uid(), &attempt.request.name);
        let result = match self.check_volume(attempt, &volume).await {
            Ok(()) => self.save(attempt, volume).await,
            Err(error) => Err(error),
        };
        let saved = match result {
            Ok(saved) => saved,
            Err(error) if error.is_outcome() => {
                self.context.progress.set(uid, Stage::Begun);
                self.publish_failure(attempt, error_chain(&error)).await;
                self.unhold(uid).await?;
                return Err(error);
            }
            Err(error) => {
                // The same call finds the volume again, or creates it again where it was deleted
                self.hold(uid).await;
                self.publish_failure(attempt, error_chain(&error)).await;
                return Err(error);
            }
        };
        self.volumes.note_written(&saved);
        tracing::info!(claim = full_name(&attempt.claim), volume = name, "provisioned a volume");
        tokio::join!(self.unhold(uid), self.release_source(attempt)).0?;
        let note = format!("Successfully provisioned volume {name}");
        self.publish_normal(&attempt.claim, "ProvisioningSucceeded", note).await;
        // Last: if the term ends before that, the next one finds the PersistentVolume and does the rest
        self.context.progress.forget(uid);
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
        let cleanup = Cleanup::run(&self.csi, attempt, &volume.volume_id).await;
        Err(if is_small {
            ProvisionError::TooSmall { bytes, requested, cleanup }
        } else {
            ProvisionError::NotCopied(cleanup)
        })
    }

    /// Creates the PersistentVolume, and returns it. One that exists with this claim was created by an earlier request.
    async fn save(&self, attempt: &Attempt, volume: Volume) -> Result<PersistentVolume, ProvisionError> {
        let id = volume.volume_id.clone();
        let object = build_persistent_volume(&self.context.driver, &self.context.identity, attempt, volume);
        let params = PostParams { field_manager: Some(CREATED_BY.to_owned()), ..PostParams::default() };
        let name = &attempt.request.name;
        let api: Api<PersistentVolume> = Api::all(self.context.client.clone());
        let error = match api.create(&params, &object).await {
            Ok(created) => return Ok(created),
            Err(error) => error,
        };
        let is_conflict = matches!(&error, kube::Error::Api(status) if status.code == 409);
        let existing = if is_conflict {
            let found = none_if_not_found(api.get(name).await);
            found.map_err(ReconcileError::api("read PersistentVolume", name))?
        } else {
            None
        };
        let Some(existing) = existing else {
            return Err(ReconcileError::api("create PersistentVolume", name)(error).into());
        };
        let claim = existing.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()?.uid.as_deref());
        if claim == Some(attempt.uid()) {
            return Ok(existing);
        }
        let known = KnownVolume::from_object(&self.context.driver, &existing).filter(|known| known.handle == id);
        let cleanup = match known.map(|known| known.name).or_else(|| self.volumes.name_of_handle(&id)) {
            // It is not new: a backup tool or an administrator has created the object of an existing volume
            Some(referring) => Cleanup::Kept(referring),
            None => Cleanup::run(&self.csi, attempt, &id).await,
        };
        Err(ProvisionError::NameTakenMeanwhile { name: name.clone(), cleanup })
    }

    /// Publishes an Event about a failed call, once.
    async fn report(&self, failure: &Failure) {
        if !failure.is_reported() {
            self.publish_failure(&failure.attempt, error_chain(&failure.error)).await;
            failure.set_reported();
        }
    }

    /// Does what the code of a failed call means. The claim may be held: by another process, if that was the
    /// provisioner since the call.
    async fn conclude(&self, failure: &Failure) -> Result<(), ProvisionError> {
        let Failure { attempt, error, .. } = failure;
        let uid = attempt.uid();
        let kind = CreateFailure::from(error);
        if kind == CreateFailure::Exhausted && attempt.selected_node().is_some() {
            self.deselect_node(&attempt.claim).await?;
            self.context.progress.set(uid, Stage::Begun);
            return Ok(());
        }
        if kind == CreateFailure::Infeasible {
            let pause = self.settings.provisioner_retry_interval_max;
            self.context.progress.refuse(uid, attempt.class.metadata.uid.clone(), pause);
        } else {
            self.context.progress.set(uid, Stage::Begun);
        }
        Err(error.clone().into())
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

    async fn publish_failure(&self, attempt: &Attempt, error: String) {
        self.publish_warning(&attempt.claim, &attempt.class_name(), error).await;
    }

    async fn publish_warning(&self, claim: &PersistentVolumeClaim, class: &str, error: String) {
        let note = format!("failed to provision volume with StorageClass {class:?}: {error}");
        self.context.events.publish_warning(&reference(claim), "ProvisioningFailed", "Provision", note).await;
    }
}

impl Cleanup {
    /// Deletes a volume that the claim cannot use, in several attempts.
    async fn run(csi: &CsiController, attempt: &Attempt, id: &str) -> Self {
        let mut result = Ok(());
        for _ in 0..CLEANUP_ATTEMPTS {
            result = csi.delete_volume(id, attempt.request.secrets.clone()).await;
            if result.is_ok() {
                break;
            }
        }
        result.map_or_else(Self::Failed, |()| Self::Deleted)
    }
}

impl ProvisionError {
    /// Returns whether it ends an attempt: no volume exists for the claim, and the same call must not create one.
    const fn is_outcome(&self) -> bool {
        matches!(self, Self::NameTakenMeanwhile { cleanup: Cleanup::Deleted | Cleanup::Kept(_), .. })
    }
}

fn reference(claim: &PersistentVolumeClaim) -> ObjectReference {
    claim.object_ref(&())
}
