//! Removes the finalizers of TopoLVM from claims: `topolvm.io/pvc`, earlier `topolvm.cybozu.com/pvc`.
//!
//! No component adds one any more unless the webhook for claims is configured to, so the existing ones are removed.
//! Where the finalizer is kept on purpose it has a use: a pod of a StatefulSet whose claim was deleted, for example
//! with its node, waits forever for a claim that no controller recreates. When it is the last finalizer of the claim,
//! pods that are still pending for the claim are deleted and it is removed; the StatefulSet then recreates both.
//!
//! The pods go first: as long as the claim exists, the retry after a lost answer or the next leader finds it, and with
//! it all remaining work. No pod comes back to the claim that is being deleted: the StatefulSet controller creates none
//! before it can create the claim (Kubernetes' `createPersistentVolumeClaims`: "pvc ... is being deleted"). Pods that
//! other controllers, and those of old Kubernetes versions, create in between are deleted once the claim is gone.

use std::pin::pin;
use std::sync::Arc;

use futures::TryStreamExt as _;
use json_patch::PatchOperation;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, ListParams, PatchParams, Preconditions};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Resource as _, ResourceExt as _};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use topolvm_api::claim::{full_name, is_mounted_by};
use topolvm_kube::{
    Cache, CachedClaim, ReconcileError, json_patch, list_in_pages, none_if_not_found, remove_finalizers,
};
use topolvm_runtime::error_chain;

use super::Controllers;
use super::pvc_finalizer::FinalizerPolicy;
use super::work_queue::{WORK_QUEUE, reconcile_all};

/// The controller of claims.
pub(super) struct ClaimFinalizer {
    pub(super) shared: Controllers,
    pub(super) policy: FinalizerPolicy,
}

/// The state of a claim that was being deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClaimState {
    /// It still is.
    BeingDeleted,
    /// It is gone, and there is none of its name.
    Deleted,
    /// There is a new one of its name.
    Recreated,
}

impl ClaimFinalizer {
    /// Runs for as long as claims come.
    pub(super) async fn run(
        self,
        claims: Cache<CachedClaim>,
        removals: mpsc::UnboundedReceiver<ObjectRef<PersistentVolumeClaim>>,
    ) {
        let queue = UnboundedReceiverStream::new(removals);
        let this = &self;
        let reconcile = async |claim: Arc<PersistentVolumeClaim>| this.reconcile(&claim).await;
        let find = |claim: &ObjectRef<PersistentVolumeClaim>| {
            let found = claims.get_by_name(claim.namespace.as_deref().unwrap_or_default(), &claim.name);
            found.map(|claim| Arc::new(claim.to_object()))
        };
        reconcile_all("persistentvolumeclaim", &self.shared.metrics, find, queue, reconcile).await;
    }

    /// Removes the finalizers that are due for removal.
    async fn reconcile(&self, claim: &PersistentVolumeClaim) -> Result<(), ReconcileError> {
        let obsolete = remove_finalizers(&claim.metadata, &self.policy.obsolete());
        if !obsolete.is_empty() {
            // What else there is to do begins with the event of this change
            return self.remove_finalizers(claim, obsolete, "remove an obsolete finalizer from claim").await.map(drop);
        }
        if !self.policy.is_last(claim) {
            return Ok(());
        }
        if self.read_state(claim).await? == ClaimState::BeingDeleted {
            self.delete_pending_pods(claim).await?;
        }
        let last = remove_finalizers(&claim.metadata, &[self.policy.flavor.pvc_finalizer()]);
        let written = self.remove_finalizers(claim, last, "remove the finalizer from claim").await;
        // Also after an error: the answer to a change that was made may have been lost
        self.delete_late_pods(claim).await;
        written
    }

    /// Reads the state of a claim that was being deleted from the API server.
    async fn read_state(&self, claim: &PersistentVolumeClaim) -> Result<ClaimState, ReconcileError> {
        let now = self.api(claim).get_metadata_opt(&claim.name_any()).await;
        let now = now.map_err(ReconcileError::api("read claim", full_name(claim)))?;
        Ok(match now {
            None => ClaimState::Deleted,
            Some(now) if now.metadata.uid == claim.metadata.uid => ClaimState::BeingDeleted,
            Some(_) => ClaimState::Recreated,
        })
    }

    /// Removes finalizers with this patch, unless the claim is gone.
    async fn remove_finalizers(
        &self,
        claim: &PersistentVolumeClaim,
        operations: Vec<PatchOperation>,
        action: &'static str,
    ) -> Result<(), ReconcileError> {
        let patch = json_patch(operations);
        let written = self.api(claim).patch_metadata(&claim.name_any(), &PatchParams::default(), &patch).await;
        if none_if_not_found(written).map_err(ReconcileError::api(action, full_name(claim)))?.is_some() {
            tracing::info!(claim = full_name(claim), "removed the finalizer from a claim");
        }
        Ok(())
    }

    /// Deletes the pods that were created during the removal of the finalizer. The claim has left the queue with its
    /// finalizer, so that this is retried here until it succeeds.
    async fn delete_late_pods(&self, claim: &PersistentVolumeClaim) {
        let mut backoff = WORK_QUEUE.backoff;
        while let Err(error) = self.try_delete_late_pods(claim).await {
            tracing::warn!(
                claim = full_name(claim),
                error = error_chain(&error),
                "cannot check for pods that wait for a deleted claim; trying again"
            );
            tokio::time::sleep(backoff.fail()).await;
        }
    }

    async fn try_delete_late_pods(&self, claim: &PersistentVolumeClaim) -> Result<(), ReconcileError> {
        match self.read_state(claim).await? {
            ClaimState::Deleted => self.delete_pending_pods(claim).await,
            // The finalizer was not removed after all, which is retried; or the pods can use the new claim
            ClaimState::BeingDeleted | ClaimState::Recreated => Ok(()),
        }
    }

    /// Deletes the pods that are pending for the claim.
    async fn delete_pending_pods(&self, claim: &PersistentVolumeClaim) -> Result<(), ReconcileError> {
        let pods: Api<Pod> = Api::namespaced(self.shared.client.clone(), &claim.namespace().unwrap_or_default());
        let pending = ListParams::default().fields("status.phase=Pending");
        let mut pending = pin!(list_in_pages(&pods, pending));
        let failed = || ReconcileError::api("list the pending pods that use claim", full_name(claim));
        while let Some(pod) = pending.try_next().await.map_err(failed())? {
            if is_mounted_by(&claim.name_any(), &pod) {
                self.delete_pod(&pods, &pod, claim).await?;
            }
        }
        Ok(())
    }

    async fn delete_pod(
        &self,
        pods: &Api<Pod>,
        pod: &Pod,
        claim: &PersistentVolumeClaim,
    ) -> Result<(), ReconcileError> {
        let name = pod.name_any();
        let exactly = Preconditions { uid: pod.uid(), resource_version: pod.resource_version() };
        // A pod that has changed may run by now: then this fails, and is done again with a new list
        let deleted = pods.delete(&name, &DeleteParams::default().preconditions(exactly)).await;
        if none_if_not_found(deleted).map_err(ReconcileError::api("delete pending pod", &name))?.is_none() {
            return Ok(());
        }
        tracing::info!(pod = name, claim = full_name(claim), "deleted a pod that waited for a claim that was deleted");
        let note =
            format!("claim {} was deleted; the pod is deleted so that its controller recreates both", claim.name_any());
        self.shared.events.publish_normal(&pod.object_ref(&()), "ClaimGone", "DeletePod", note).await;
        Ok(())
    }

    fn api(&self, claim: &PersistentVolumeClaim) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.shared.client.clone(), &claim.namespace().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests;
