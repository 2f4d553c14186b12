//! Has kubelet grow a filesystem now.
//!
//! kubelet looks at the size of a mounted volume only when it syncs the pod, which without a reason is every minute or two. A changed
//! annotation of the pod is a reason. Nothing is lost when a nudge is: kubelet then grows the filesystem at its next sync. So nothing is
//! retried.
//!
//! Pods are annotated once for each size that a claim waits for. Which those were is remembered and not read from times: the condition of
//! the claim has whole seconds and the clock of another machine, and two growths fit into one second.

use std::collections::HashMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::runtime::watcher::Event;
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio::sync::mpsc;
use topolvm_api::{ApiFlavor, RESIZEFS_REQUESTED_AT};
use topolvm_kube::ReconcileMetrics;
use topolvm_runtime::error_chain;

use super::claim_informer::{provisioner, volume_name};
use crate::volume_informer::VolumeWatch;

/// Condition of a claim whose volume has grown and whose filesystem has not.
const PENDING: &str = "FileSystemResizePending";

/// What `status.allocatedResourceStatuses` says while nobody has begun to grow the filesystem. csi-resizer writes it; kubelet replaces it by
/// `NodeResizeInProgress`, `NodeResizeInfeasible` and so on when it tries, each time that it tries.
const NODE_PENDING: &str = "NodeResizePending";

/// Tells kubelet about claims whose filesystem waits to be grown.
#[derive(Clone)]
pub(super) struct ResizeNudge {
    pub(super) client: Client,
    pub(super) volumes: VolumeWatch,
    pub(super) metrics: ReconcileMetrics,
    /// The wall clock.
    pub(super) now: fn() -> Timestamp,
}

/// What a change of a claim says about the growth of its filesystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Growth {
    /// kubelet has to grow it.
    Waiting(Waiting),
    /// The claim with this UID does not wait for kubelet, or is gone.
    Settled(String),
    /// All claims are listed anew. Those that went meanwhile are not named.
    Listing,
}

/// A claim whose filesystem waits to be grown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Waiting {
    namespace: String,
    claim: String,
    uid: String,
    /// The name of its PersistentVolume.
    volume: Option<String>,
    /// The size that it waits for, as Kubernetes writes it.
    size: String,
}

impl ResizeNudge {
    /// Works for as long as changes of claims come.
    pub(super) async fn run(self, mut changes: mpsc::UnboundedReceiver<Growth>) {
        // By UID of the claim: the size for which its pods were annotated last
        let mut told = HashMap::new();
        while let Some(change) = changes.recv().await {
            match change {
                Growth::Waiting(claim) if told.get(&claim.uid) == Some(&claim.size) => {}
                Growth::Waiting(claim) => match self.metrics.observed("filesystemresize", self.nudge(&claim)).await {
                    Ok(()) => {
                        told.insert(claim.uid, claim.size);
                    }
                    Err(error) => {
                        let Waiting { namespace, claim, .. } = &claim;
                        let error = error_chain(&error);
                        tracing::warn!(
                            namespace,
                            claim,
                            error,
                            "kubelet will grow the filesystem at its next sync only"
                        );
                    }
                },
                Growth::Settled(uid) => {
                    told.remove(&uid);
                }
                Growth::Listing => told.clear(),
            }
        }
    }

    /// Annotates the pods that use the claim.
    async fn nudge(&self, waiting: &Waiting) -> kube::Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &waiting.namespace);
        // Pods cannot be selected by claim, but by node, and those of one node and namespace are few. They run where the volume is, which
        // need not be where the scheduler wanted it
        let volume = waiting.volume.as_ref().and_then(|name| self.volumes.get(name));
        let on_node = volume.map(|volume| format!("spec.nodeName={}", volume.spec.node_name));
        let list = ListParams { field_selector: on_node, ..ListParams::default() };
        for pod in pods.list(&list).await?.items.iter().filter(|pod| waiting.is_used_by(pod)) {
            let patch = json!({"metadata": {
                // Another pod of the same name is not meant
                "uid": pod.metadata.uid,
                "annotations": {RESIZEFS_REQUESTED_AT: (self.now)().to_string()},
            }});
            pods.patch_metadata(&pod.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await?;
            tracing::info!(namespace = waiting.namespace, pod = pod.name_any(), "asked kubelet to grow a filesystem");
        }
        Ok(())
    }
}

impl Growth {
    /// What this event says, if the claim is ours.
    pub(super) fn of(flavor: ApiFlavor, event: &Event<PersistentVolumeClaim>) -> Option<Self> {
        let (Event::Apply(claim) | Event::InitApply(claim) | Event::Delete(claim)) = event else {
            return matches!(event, Event::Init).then_some(Self::Listing);
        };
        if provisioner(claim)? != flavor.driver_name() {
            return None;
        }
        let waiting = Waiting::of(claim).filter(|_| !matches!(event, Event::Delete(_)));
        Some(waiting.map_or_else(|| Self::Settled(claim.uid().unwrap_or_default()), Self::Waiting))
    }
}

impl Waiting {
    /// The claim, if it waits.
    fn of(claim: &PersistentVolumeClaim) -> Option<Self> {
        let status = claim.status.as_ref()?;
        let is_pending = status
            .conditions
            .iter()
            .flatten()
            .any(|condition| condition.type_ == PENDING && condition.status == "True");
        let state = status.allocated_resource_statuses.as_ref().and_then(|states| states.get("storage"));
        if !is_pending
            || state.is_some_and(|state| state != NODE_PENDING)
            || claim.metadata.deletion_timestamp.is_some()
        {
            return None;
        }
        // Kubernetes before 1.23 does not tell what was allocated
        let allocated = status.allocated_resources.as_ref().and_then(|allocated| allocated.get("storage"));
        let requested = || claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?.get("storage");
        Some(Self {
            namespace: claim.namespace().unwrap_or_default(),
            claim: claim.name_any(),
            uid: claim.uid().unwrap_or_default(),
            volume: volume_name(claim).map(str::to_owned),
            size: allocated.or_else(requested).map(|size| size.0.clone()).unwrap_or_default(),
        })
    }

    /// Whether the pod mounts the claim.
    fn is_used_by(&self, pod: &Pod) -> bool {
        let mut volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
        let uses = volumes.any(|volume| {
            volume.persistent_volume_claim.as_ref().is_some_and(|source| source.claim_name == self.claim)
        });
        uses && pod.metadata.deletion_timestamp.is_none()
    }
}

#[cfg(test)]
mod tests;
