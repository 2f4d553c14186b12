//! Makes the kubelet expand a filesystem at once.
//!
//! The kubelet checks the size of a mounted volume only when it syncs the pod, which without a reason is every minute
//! or two. A changed annotation of the pod is a reason. Nothing is lost if the annotation is not written: the kubelet
//! then expands the filesystem at its next sync. So nothing is retried.
//!
//! Pods are annotated once for each size that a claim waits for. Those sizes are kept in memory and not derived from
//! times: the condition of the claim has whole seconds and the clock of another machine, and two expansions fit into
//! one second.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt as _};
use serde_json::json;
use tokio::sync::mpsc;
use topolvm_api::RESIZEFS_REQUESTED_AT;
use topolvm_api::claim::is_mounted_by;
use topolvm_runtime::error_chain;

use super::Controllers;
use super::pending_resize::{PendingResize, ResizeEvent};

/// Annotates the pods of claims whose filesystem waits to be expanded.
pub(super) struct FilesystemResize {
    pub(super) shared: Controllers,
}

impl FilesystemResize {
    /// Runs for as long as events come.
    pub(super) async fn run(self, mut events: mpsc::UnboundedReceiver<ResizeEvent>) {
        // By UID of the claim: the size for which its pods were annotated last
        let mut annotated = HashMap::new();
        while let Some(event) = events.recv().await {
            match event {
                ResizeEvent::Pending(claim) if annotated.get(&claim.uid) == Some(&claim.size) => {}
                ResizeEvent::Pending(claim) => {
                    match self.shared.metrics.observe("filesystemresize", self.annotate_pods(&claim)).await {
                        Ok(()) => {
                            annotated.insert(claim.uid, claim.size);
                        }
                        Err(error) => {
                            let PendingResize { namespace, claim, .. } = &claim;
                            let error = error_chain(&error);
                            tracing::warn!(
                                namespace,
                                claim,
                                error,
                                "cannot notify the kubelet; it will grow the filesystem at its next sync"
                            );
                        }
                    }
                }
                ResizeEvent::Settled(uid) => {
                    annotated.remove(&uid);
                }
                ResizeEvent::Relist => annotated.clear(),
            }
        }
    }

    /// Annotates the pods that use the claim.
    async fn annotate_pods(&self, pending: &PendingResize) -> kube::Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.shared.client.clone(), &pending.namespace);
        // Pods cannot be selected by claim, but by node, and those of one node and namespace are few. They run where
        // the volume is, which need not be where the scheduler wanted it
        let volume = pending.volume.as_ref().and_then(|name| self.shared.volumes.cache.get(name));
        let on_node = volume.map(|volume| format!("spec.nodeName={}", volume.spec.node_name));
        let list = ListParams { field_selector: on_node, ..ListParams::default() };
        for pod in pods.list(&list).await?.items.iter().filter(|pod| is_mounted_by(&pending.claim, pod)) {
            let patch = json!({"metadata": {
                // Another pod of the same name is not meant
                "uid": pod.metadata.uid,
                "annotations": {RESIZEFS_REQUESTED_AT: (self.shared.now)().to_string()},
            }});
            pods.patch_metadata(&pod.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await?;
            tracing::info!(
                namespace = pending.namespace,
                pod = pod.name_any(),
                "notified the kubelet to grow a filesystem"
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
