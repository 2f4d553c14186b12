//! The finalizer that TopoLVM has put on claims at times: `topolvm.io/pvc`, earlier `topolvm.cybozu.com/pvc`.
//!
//! Nothing puts it there any more unless the webhook for claims is asked to, so that what is left of it is taken off. Where it is kept on
//! purpose it has a use: a pod of a StatefulSet whose claim was deleted, say with its node, waits for ever for a claim that nobody makes
//! again. When all others have let go of the claim it is let go, and pods that are still pending for it are deleted; the StatefulSet then
//! makes both anew.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, ListParams, PatchParams, Preconditions};
use kube::runtime::reflector::ObjectRef;
use kube::{Api, Client, Resource as _, ResourceExt as _};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use topolvm_api::ApiFlavor;
use topolvm_runtime::error_chain;

use super::claims::Claims;
use super::error::{Error, present};
use super::events::Events;
use super::finalizers;
use super::work::work;

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
        work("claims with finalizers", claims.store(), queue, async |claim| this.step(&claim).await).await;
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
        let last = finalizers::removal(&claim.metadata, &[self.flavor.pvc_finalizer()]);
        self.write(claim, last, "let go of claim").await?;
        self.release_pods(claim).await
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

    /// Deletes the pods that are pending for a claim that is gone. The claim has left the queue with its finalizer, so that this is
    /// repeated here until it is done.
    async fn release_pods(&self, claim: &PersistentVolumeClaim) -> Result<(), Error> {
        let mut pause = std::time::Duration::from_millis(200);
        while let Err(error) = self.delete_pending_pods(claim).await {
            tracing::warn!(
                claim = full_name(claim),
                error = error_chain(&error),
                "cannot delete the pods that wait for a claim that is gone; trying again"
            );
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(std::time::Duration::from_secs(30));
        }
        Ok(())
    }

    async fn delete_pending_pods(&self, claim: &PersistentVolumeClaim) -> Result<(), Error> {
        // A new claim of this name is what the pods can use
        let again = self.api(claim).get_metadata_opt(&claim.name_any()).await;
        if again.map_err(Error::api("read claim", full_name(claim)))?.is_some() {
            return Ok(());
        }
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
        tracing::info!(pod = name, claim = full_name(claim), "deleted a pod that waited for a claim that is gone");
        let note =
            format!("claim {} is gone; the pod is deleted so that its controller makes both anew", claim.name_any());
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
