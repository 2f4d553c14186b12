//! The finalizer that TopoLVM has put on claims at times: `topolvm.io/pvc`, earlier `topolvm.cybozu.com/pvc`.
//!
//! Nothing puts it there any more unless the webhook for claims is asked to, so that what is left of it is taken off. Where it is kept on
//! purpose it has a use: a pod of a StatefulSet whose claim was deleted, say with its node, waits for ever for a claim that nobody makes
//! again. When all others have let go of the claim, pods that are still pending for it are deleted and it is let go; the StatefulSet then
//! makes both anew.
//!
//! The pods go first: as long as the claim is there, a lost answer or the next leader finds it, and with it all that is left to do. No
//! pod comes back to the claim that is on its way out: the StatefulSet controller makes none before it can make the claim (Kubernetes'
//! `createPersistentVolumeClaims`: "pvc ... is being deleted"). What other controllers, and those of old Kubernetes versions, make in
//! between is deleted once the claim is gone.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, ListParams, PatchParams, Preconditions};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Client, Resource as _, ResourceExt as _};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use topolvm_api::ApiFlavor;
use topolvm_kube::ReconcileMetrics;
use topolvm_runtime::error_chain;

use super::claim_informer::Claims;
use super::error::{Error, present};
use super::events::Events;
use super::finalizers;
use super::work_queue::work;

/// The finalizers of both flavors.
pub(super) const PVC_FINALIZERS: [&str; 2] = [ApiFlavor::TopoLvm.pvc_finalizer(), ApiFlavor::Legacy.pvc_finalizer()];
/// Pods per answer. Those that are pending are few.
const PAGE: u32 = 100;

/// Takes the finalizer off.
pub(super) struct ClaimFinalizer {
    pub(super) client: Client,
    pub(super) flavor: ApiFlavor,
    /// Whether claims carry the finalizer of our flavor on purpose.
    pub(super) is_kept: bool,
    pub(super) events: Events,
    pub(super) metrics: ReconcileMetrics,
}

/// What has become of a claim that was being deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// It still is.
    Leaving,
    /// It is gone, and there is none of its name.
    Gone,
    /// There is a new one of its name.
    Replaced,
}

/// Whether there is a finalizer to take off.
pub(super) fn is_finalizable(flavor: ApiFlavor, is_kept: bool, claim: &PersistentVolumeClaim) -> bool {
    obsolete(flavor, is_kept).iter().any(|name| finalizers::has(&claim.metadata, name))
        || (is_kept && is_last(flavor, claim))
}

/// The finalizers that nobody wants. TopoLVM left some on a claim more than once.
fn obsolete(flavor: ApiFlavor, is_kept: bool) -> Vec<&'static str> {
    PVC_FINALIZERS.into_iter().filter(|name| !is_kept || *name != flavor.pvc_finalizer()).collect()
}

/// All others have let go of the claim, and no pod that runs uses it any more (`kubernetes.io/pvc-protection`).
fn is_last(flavor: ApiFlavor, claim: &PersistentVolumeClaim) -> bool {
    let ours = flavor.pvc_finalizer();
    claim.metadata.deletion_timestamp.is_some()
        && finalizers::has(&claim.metadata, ours)
        && claim.finalizers().iter().all(|name| name == ours)
}

impl ClaimFinalizer {
    /// Works for as long as claims come.
    pub(super) async fn run(
        self,
        claims: Claims,
        finalizable: mpsc::UnboundedReceiver<ObjectRef<PersistentVolumeClaim>>,
    ) {
        let queue = UnboundedReceiverStream::new(finalizable);
        let this = &self;
        let step = async |claim: Arc<PersistentVolumeClaim>| this.step(&claim).await;
        work("persistentvolumeclaim", &self.metrics, claims.store(), queue, step).await;
    }

    async fn step(&self, claim: &PersistentVolumeClaim) -> Result<(), Error> {
        let obsolete = finalizers::removal(&claim.metadata, &obsolete(self.flavor, self.is_kept));
        if !obsolete.is_empty() {
            // What else there is to do begins with the event of this change
            return self.write(claim, obsolete, "take an obsolete finalizer off claim").await.map(drop);
        }
        if !self.is_kept || !is_last(self.flavor, claim) {
            return Ok(());
        }
        if self.fate(claim).await? == Fate::Leaving {
            self.delete_pending_pods(claim).await?;
        }
        let last = finalizers::removal(&claim.metadata, &[self.flavor.pvc_finalizer()]);
        let written = self.write(claim, last, "let go of claim").await;
        // Also when the answer says that it has failed: that of a change that was made may have been lost
        self.release_latecomers(claim).await;
        written
    }

    /// What the API server says that has become of a claim that was being deleted.
    async fn fate(&self, claim: &PersistentVolumeClaim) -> Result<Fate, Error> {
        let now = self.api(claim).get_metadata_opt(&claim.name_any()).await;
        let now = now.map_err(Error::api("read claim", full_name(claim)))?;
        Ok(match now {
            None => Fate::Gone,
            Some(now) if now.metadata.uid == claim.metadata.uid => Fate::Leaving,
            Some(_) => Fate::Replaced,
        })
    }

    async fn write(
        &self,
        claim: &PersistentVolumeClaim,
        operations: Vec<serde_json::Value>,
        action: &'static str,
    ) -> Result<(), Error> {
        let patch = finalizers::patch(operations)?;
        let written = self.api(claim).patch_metadata(&claim.name_any(), &PatchParams::default(), &patch).await;
        if present(written).map_err(Error::api(action, full_name(claim)))?.is_some() {
            tracing::info!(claim = full_name(claim), "took our finalizer off");
        }
        Ok(())
    }

    /// Deletes the pods that have come while the claim was let go. The claim has left the queue with its finalizer, so that this is
    /// repeated here until it is done.
    async fn release_latecomers(&self, claim: &PersistentVolumeClaim) {
        let mut backoff = super::work_queue::PACE.retry;
        while let Err(error) = self.delete_latecomers(claim).await {
            tracing::warn!(
                claim = full_name(claim),
                error = error_chain(&error),
                "cannot look for pods that wait for a claim that is gone; trying again"
            );
            tokio::time::sleep(backoff.fail()).await;
        }
    }

    async fn delete_latecomers(&self, claim: &PersistentVolumeClaim) -> Result<(), Error> {
        match self.fate(claim).await? {
            Fate::Gone => self.delete_pending_pods(claim).await,
            // It was not let go after all, which is tried again; or there is a new claim, which is what the pods can use
            Fate::Leaving | Fate::Replaced => Ok(()),
        }
    }

    async fn delete_pending_pods(&self, claim: &PersistentVolumeClaim) -> Result<(), Error> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &claim.namespace().unwrap_or_default());
        let mut page = ListParams::default().fields("status.phase=Pending").limit(PAGE);
        loop {
            let list =
                pods.list(&page).await.map_err(Error::api("list the pending pods beside claim", full_name(claim)))?;
            for pod in list.items.iter().filter(|pod| uses(pod, &claim.name_any())) {
                self.delete_pod(&pods, pod, claim).await?;
            }
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => return Ok(()),
            }
        }
    }

    async fn delete_pod(&self, pods: &Api<Pod>, pod: &Pod, claim: &PersistentVolumeClaim) -> Result<(), Error> {
        let name = pod.name_any();
        let exactly = Preconditions { uid: pod.uid(), resource_version: pod.resource_version() };
        // A pod that has changed may run by now: then this fails, and is done again with a new list
        let deleted = pods.delete(&name, &DeleteParams::default().preconditions(exactly)).await;
        if present(deleted).map_err(Error::api("delete pending pod", &name))?.is_none() {
            return Ok(());
        }
        tracing::info!(pod = name, claim = full_name(claim), "deleted a pod that waited for a claim that was deleted");
        let note = format!(
            "claim {} was deleted; the pod is deleted so that its controller makes both anew",
            claim.name_any()
        );
        self.events.normal(&pod.object_ref(&()), "ClaimGone", "DeletePod", note).await;
        Ok(())
    }

    fn api(&self, claim: &PersistentVolumeClaim) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), &claim.namespace().unwrap_or_default())
    }
}

fn uses(pod: &Pod, claim: &str) -> bool {
    let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    pod.metadata.deletion_timestamp.is_none()
        && volumes
            .any(|volume| volume.persistent_volume_claim.as_ref().is_some_and(|source| source.claim_name == claim))
}

fn full_name(claim: &PersistentVolumeClaim) -> String {
    format!("{}/{}", claim.namespace().unwrap_or_default(), claim.name_any())
}

#[cfg(test)]
mod tests;
