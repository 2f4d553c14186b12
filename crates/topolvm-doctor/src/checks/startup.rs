//! Reasons for which pods of the programs do not run, with their nodes.

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube_core::ResourceExt as _;

use crate::facts::Facts;
use crate::objects::{full_name, is_over, node_of, unscheduled};
use crate::workloads::{Workload, is_of};

/// Age up to which a pod that could not be created explains one that is absent. Controllers repeat such an Event after
/// a quarter of an hour at the latest.
const RECENT: SignedDuration = SignedDuration::from_mins(30);
/// Time that a pod has to become ready.
const SETTLED: SignedDuration = SignedDuration::from_mins(1);
/// Reasons of containers that are about to start.
const STARTING: [&str; 2] = ["ContainerCreating", "PodInitializing"];

/// Returns why pods of a workload do not run; nothing where that is not known.
pub(super) fn reasons(facts: &Facts, workload: &Workload) -> Vec<String> {
    let mut reasons = pod_reasons(facts, workload.role.program());
    let (kind, name) = workload.name.split_once('/').unwrap_or_default();
    let is_of_workload = |event: &&Event| {
        let object = &event.involved_object;
        let (of_kind, of_name) = (object.kind.as_deref().unwrap_or_default(), object.name.as_deref());
        let of_name = of_name.unwrap_or_default();
        // Of a Deployment the ReplicaSet creates the pods
        let is_named = of_name == name || kind == "deployment" && of_name.starts_with(&format!("{name}-"));
        object.namespace.as_ref() == Some(&workload.namespace)
            && is_named
            && [kind, "replicaset"].contains(&of_kind.to_lowercase().as_str())
    };
    let is_recent = |event: &&Event| {
        let last = event.last_timestamp.as_ref().map(|time| time.0);
        let time = last.or_else(|| event.event_time.as_ref().map(|time| time.0));
        time.is_some_and(|time| facts.now.duration_since(time) < RECENT)
    };
    // Without the right to list Events they are left out
    let refused = facts.creation_events.iter().flatten().filter(is_of_workload).filter(is_recent);
    reasons.extend(refused.filter_map(|event| event.message.clone()));
    reasons.sort();
    reasons.dedup();
    reasons
}

/// Returns why pods of a program in our namespace do not run.
pub(super) fn pod_reasons(facts: &Facts, program: &str) -> Vec<String> {
    let runs = |pod: &&Pod| {
        let mut containers = pod.spec.iter().flat_map(|spec| spec.containers.iter());
        pod.namespace().as_ref() == Some(&facts.namespace)
            && !is_over(pod)
            && containers.any(|container| is_of(container, program))
    };
    // Without the right to list pods they are left out
    facts.pods.iter().flatten().filter(runs).filter_map(|pod| reason(facts, pod)).collect()
}

fn reason(facts: &Facts, pod: &Pod) -> Option<String> {
    let node = meant_node(pod).map(|node| format!("node {node}: ")).unwrap_or_default();
    if let Some(condition) = unscheduled(pod) {
        let message = condition.message.as_deref().unwrap_or_default();
        return Some(format!("{node}pod {} has no node: {message}", full_name(pod)));
    }
    let status = pod.status.as_ref()?;
    let containers = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    let waiting = containers.filter_map(|container| Some((container, container.state.as_ref()?.waiting.as_ref()?)));
    let mut reasons = waiting.filter_map(|(container, waiting)| {
        let reason = waiting.reason.as_deref().filter(|reason| !STARTING.contains(reason))?;
        let message = waiting.message.as_ref().map(|message| format!(": {message}")).unwrap_or_default();
        Some(format!("{node}pod {}, container {}: {reason}{message}", full_name(pod), container.name))
    });
    let unready = || {
        let conditions = status.conditions.iter().flatten();
        let unready = conditions.filter(|one| one.type_ == "Ready" && one.status == "False");
        let mut lasting = unready.filter(|one| facts.is_older(one.last_transition_time.as_ref(), SETTLED));
        let message = lasting.next()?.message.as_deref().unwrap_or_default();
        Some(format!("{node}pod {} is not ready: {message}", full_name(pod)))
    };
    reasons.next().or_else(unready)
}

/// Returns the node of a pod, or the only one on which the pod of a DaemonSet may run.
fn meant_node(pod: &Pod) -> Option<&str> {
    node_of(pod).or_else(|| {
        let affinity = pod.spec.as_ref()?.affinity.as_ref()?.node_affinity.as_ref()?;
        let terms = &affinity.required_during_scheduling_ignored_during_execution.as_ref()?.node_selector_terms;
        let mut fields = terms.iter().flat_map(|term| term.match_fields.iter().flatten());
        let field = fields.find(|field| field.key == "metadata.name")?;
        field.values.as_ref()?.first().map(String::as_str)
    })
}
