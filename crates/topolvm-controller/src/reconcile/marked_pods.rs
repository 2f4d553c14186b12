//! Cleans up the state of the scheduling mode `extender` in the mode `capacity`: reports pods that wait for an extender
//! that kube-scheduler does not call any more, and deletes the proof that it calls it.
//!
//! A pod keeps the resource `topolvm.io/capacity` that it got in the scheduling mode `extender`: resources of a pod
//! cannot be changed. After a change to the mode `capacity` no node has the resource, and a pod that was pending then
//! stays pending until it is recreated. An Event on the pod contains the command for that.
//!
//! After a change back to the mode `extender`, an existing proof would count until the first probe has ended, and pods
//! that are created meanwhile would wait for an extender that may not exist yet.

use std::pin::pin;
use std::time::Duration;

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, Resource as _, ResourceExt as _};
use topolvm_api::{ApiFlavor, EXTENDER_PROBE};
use topolvm_kube::{ReconcileError, list_in_pages, none_if_not_found};
use topolvm_runtime::error_chain;

use super::Controllers;
use super::probe_pod::{Answer, read_answer};
use crate::scheduling::SchedulingMode;

/// Pause between two clear-ups. kube-scheduler tries a pod again after this time at the latest, too.
const INTERVAL: Duration = Duration::from_mins(5);
/// Label of a ReplicaSet's pods with the end of its name, which a Deployment has chosen.
const TEMPLATE_HASH: &str = "pod-template-hash";

/// The controller of marked pods.
pub(super) struct MarkedPods {
    pub(super) shared: Controllers,
}

impl MarkedPods {
    /// Clears up now, and then every interval. Returns at once in any other mode than `capacity`.
    pub(super) async fn run(self) {
        if self.shared.scheduling.config.mode != Some(SchedulingMode::Capacity) {
            return;
        }
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Err(error) = self.shared.metrics.observe("markedpods", self.reconcile()).await {
                tracing::warn!(error = error_chain(&error), "cannot clean up after the scheduling mode extender");
            }
        }
    }

    /// Deletes the proof, and names each of the pods.
    async fn reconcile(&self) -> Result<(), ReconcileError> {
        let forgotten = self.forget_proof().await;
        self.name_pods().await.and(forgotten)
    }

    async fn forget_proof(&self) -> Result<(), ReconcileError> {
        let api: Api<ConfigMap> = Api::namespaced(self.shared.client.clone(), &self.shared.namespace);
        let deleted = none_if_not_found(api.delete(EXTENDER_PROBE, &DeleteParams::default()).await);
        deleted.map(drop).map_err(ReconcileError::api("delete", format!("the ConfigMap {EXTENDER_PROBE}")))
    }

    async fn name_pods(&self) -> Result<(), ReconcileError> {
        let api: Api<Pod> = Api::all(self.shared.client.clone());
        let mut pods = pin!(list_in_pages(&api, ListParams::default().fields("status.phase=Pending")));
        while let Some(pod) = pods.try_next().await.map_err(ReconcileError::api("list", "the pending Pods"))? {
            if is_waiting(self.shared.flavor, &pod) {
                self.report(&pod).await;
            }
        }
        Ok(())
    }

    async fn report(&self, pod: &Pod) {
        let (namespace, name, resource) = (pod.namespace(), pod.name_any(), self.shared.flavor.capacity_resource());
        let Remedy { owner, command } = remedy(pod);
        tracing::warn!(namespace, pod = name, owner, command, "a pod waits for an extender that is no longer used");
        let note = format!(
            "the pod requests the resource {resource} of the scheduling mode extender, which no node offers; new pods \
             do not get it. Recreate {owner} with: {command}"
        );
        self.shared.events.publish_warning(&pod.object_ref(&()), "CapacityResourceLeft", "Schedule", note).await;
    }
}

/// Returns whether the pod is pending because no node has the resource.
fn is_waiting(flavor: ApiFlavor, pod: &Pod) -> bool {
    let is_live = pod.metadata.deletion_timestamp.is_none();
    is_live && matches!(read_answer(flavor, pod), Some(Answer::NotCalled(_)))
}

/// The object that a pod belongs to, and the command that recreates the pod.
#[derive(Debug, PartialEq, Eq)]
struct Remedy {
    owner: String,
    command: String,
}

/// Returns the owner of a pod, and the command. A pod of a Deployment or DaemonSet is replaced by a restart. A
/// StatefulSet waits in a restart until its pending pod runs, so that this has to be deleted, as that of any other
/// controller.
fn remedy(pod: &Pod) -> Remedy {
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let restart = |kind: &str, resource: &str, owner: &str| Remedy {
        owner: format!("{kind} {owner}"),
        command: format!("kubectl -n {namespace} rollout restart {resource}/{owner}"),
    };
    let delete = |owner: String| Remedy { owner, command: format!("kubectl -n {namespace} delete pod {name}") };
    let Some(owner) = controller(pod) else {
        return Remedy {
            owner: format!("Pod {name}"),
            command: format!(
                "kubectl -n {namespace} delete pod {name}, and apply its manifest again without the resource"
            ),
        };
    };
    match (owner.kind.as_str(), deployment(pod, owner)) {
        ("ReplicaSet", Some(deployment)) => restart("Deployment", "deployment", deployment),
        ("DaemonSet", _) => restart("DaemonSet", "daemonset", &owner.name),
        _ => delete(format!("{} {}", owner.kind, owner.name)),
    }
}

fn controller(pod: &Pod) -> Option<&OwnerReference> {
    pod.owner_references().iter().find(|owner| owner.controller == Some(true))
}

/// Returns the name of the Deployment that has made the ReplicaSet of a pod.
fn deployment<'a>(pod: &Pod, replica_set: &'a OwnerReference) -> Option<&'a str> {
    let hash = pod.labels().get(TEMPLATE_HASH)?;
    replica_set.name.strip_suffix(hash)?.strip_suffix('-').filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests;
