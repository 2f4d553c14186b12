//! Checks of the scheduler extender and of the resource that makes kube-scheduler call it.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Pod;
use kube_core::ResourceExt as _;

use super::switch;
use crate::facts::Facts;
use crate::finding::Finding;
use crate::mode::Mode;
use crate::mode_detection::{mode, needs_proof};
use crate::objects::{delete_owned_pods, describe_pods, has_marker, is_over, owner, unscheduled};
use crate::read_error::{ReadError, read};
use crate::scheduling_message::scheduling_reasons;
use crate::shell::quote;

/// Returns kube-scheduler's message about a pod for which it has found no node.
fn message(pod: &Pod) -> &str {
    unscheduled(pod).and_then(|condition| condition.message.as_deref()).unwrap_or_default()
}

/// Remedies of an extender that kube-scheduler does not call.
const GO_OVER: &str = "either configure kube-scheduler with the extender (docs/scheduling.md), or switch to storage \
    capacity tracking with these commands; if Helm, kubectl topolvm install or a repository manages the installation, \
    make the change there, so that the next upgrade does not revert it";

/// Returns the pods that wait for the resource, and whether each waits for nothing else.
///
/// An extender that is called has kube-scheduler ignore the resource, so that this message is proof that it is not.
fn blocked<'a>(facts: &Facts, pods: &'a [Pod]) -> Vec<(&'a Pod, bool)> {
    let insufficient = format!("Insufficient {}", facts.flavor.capacity_resource());
    let blocked = pods.iter().filter(|pod| has_marker(facts.flavor, pod)).filter_map(|pod| {
        let reasons = scheduling_reasons(message(pod));
        let is_blocked = reasons.iter().any(|reason| *reason == insufficient);
        is_blocked.then(|| (pod, reasons.iter().all(|reason| *reason == insufficient)))
    });
    blocked.collect()
}

pub(super) fn extender(facts: &Facts) -> Result<Vec<Finding>, ReadError> {
    let _webhooks = read(&facts.webhooks)?;
    let pods = read(&facts.pods)?;
    if mode(facts) == Mode::Capacity {
        return Ok(vec![Finding::ok("storage capacity tracking is used instead")]);
    }
    let mut findings = Vec::new();
    let blocked: Vec<_> = blocked(facts, pods).into_iter().map(|(pod, _)| pod).collect();
    if blocked.is_empty() {
        findings.extend(find_unproven(facts)?);
    } else {
        let found = format!(
            "kube-scheduler does not call the extender: no node offers {}, which the webhook added to {}",
            facts.flavor.capacity_resource(),
            describe_pods(&blocked)
        );
        findings.push(Finding::fail(found, GO_OVER).with_commands(switch::to_capacity(facts)));
    }
    let mut unreachable = pods.iter().filter(|pod| message(pod).contains("/predicate\""));
    if let Some(pod) = unreachable.next() {
        let found = format!("the extender does not answer kube-scheduler: {}", message(pod));
        let remedy = "start topolvm-scheduler at the address in the configuration of kube-scheduler (urlPrefix)";
        findings.push(Finding::fail(found, remedy));
    }
    Ok(Finding::ok_if_none(findings, "no pod waits for the resource of the extender"))
}

/// Returns the finding that the controllers have no proof of an extender that is called.
fn find_unproven(facts: &Facts) -> Result<Option<Finding>, ReadError> {
    if !needs_proof(facts) {
        return Ok(None);
    }
    let Some(reason) = facts.unproven.clone()? else { return Ok(None) };
    let found = format!(
        "no probe has confirmed that kube-scheduler calls the extender, so pods are scheduled without regard to free \
         space: {reason}"
    );
    Ok(Some(Finding::fail(found, GO_OVER).with_commands(switch::to_capacity(facts))))
}

/// Returns the commands that recreate pods which have never run, one for each namespace.
fn restart_pending(pods: &[&Pod]) -> Vec<String> {
    let owned = pods.iter().filter(|pod| owner(pod).is_some());
    let namespaces: BTreeSet<_> = owned.filter_map(|pod| pod.namespace()).collect();
    let command = |namespace: String| format!("kubectl topolvm restart-pending -n {}", quote(&namespace));
    namespaces.into_iter().map(command).collect()
}

pub(super) fn blocked_pods(facts: &Facts) -> Result<Vec<Finding>, ReadError> {
    let pods = read(&facts.pods)?;
    let blocked = blocked(facts, pods);
    let resource = facts.flavor.capacity_resource();
    let of_kind = |is_only: bool, what: &str| {
        let pods: Vec<_> = blocked.iter().filter(|(_, only)| *only == is_only).map(|(pod, _)| *pod).collect();
        let remedy = "recreate these pods once extender-called is ok; delete pods without an owner, and apply their \
            manifests again";
        (!pods.is_empty()).then(|| {
            Finding::fail(format!("{what} {resource}: {}", describe_pods(&pods)), remedy)
                .with_commands(restart_pending(&pods))
        })
    };
    let findings = [of_kind(true, "pods wait only for"), of_kind(false, "pods wait, among other things, for")];
    let findings = findings.into_iter().flatten().collect();
    Ok(Finding::ok_if_none(findings, format!("no pod waits for {resource}")))
}

pub(super) fn marker_pods(facts: &Facts) -> Result<Vec<Finding>, ReadError> {
    let _webhooks = read(&facts.webhooks)?;
    let pods = read(&facts.pods)?;
    if mode(facts) == Mode::Extender {
        return Ok(vec![Finding::ok("the extender is in use, which handles the resource")]);
    }
    let blocked = blocked(facts, pods);
    let is_reported_elsewhere = |pod: &Pod| blocked.iter().any(|(other, _)| std::ptr::eq(*other, pod));
    let carries = |pod: &&Pod| has_marker(facts.flavor, pod) && !is_over(pod) && !is_reported_elsewhere(pod);
    let carriers: Vec<_> = pods.iter().filter(carries).collect();
    let resource = facts.flavor.capacity_resource();
    if carriers.is_empty() {
        return Ok(vec![Finding::ok(format!("no pod has {resource}"))]);
    }
    let found = format!(
        "pods created before the change to storage capacity tracking have {resource}: {}",
        describe_pods(&carriers)
    );
    let remedy = "restart their owners at a convenient time; for pods without an owner, apply their manifests again";
    Ok(vec![Finding::warn(found, remedy).with_commands(restart_owners(&carriers))])
}

/// Returns the commands that recreate pods: a rolling restart if the owner supports it.
fn restart_owners(pods: &[&Pod]) -> Vec<String> {
    let restarts = |pod: &Pod| {
        let owner = owner(pod)?;
        let is_rolling = ["deployment/", "statefulset/", "daemonset/"].iter().any(|kind| owner.starts_with(kind));
        let namespace = pod.namespace().unwrap_or_default();
        is_rolling.then(|| format!("kubectl -n {} rollout restart {}", quote(&namespace), quote(&owner)))
    };
    let rolling: BTreeSet<_> = pods.iter().filter_map(|pod| restarts(pod)).collect();
    let others: Vec<_> = pods.iter().copied().filter(|pod| restarts(pod).is_none()).collect();
    rolling.into_iter().chain(delete_owned_pods(&others)).collect()
}
