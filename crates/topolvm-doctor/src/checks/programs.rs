//! Checks of agents and controllers, and of the rights of their service accounts.

use std::collections::{BTreeMap, BTreeSet};

use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube_core::ResourceExt;
use topolvm_api::ApiFlavor;

use super::startup;
use super::storage::HIDDEN_DISK;
use super::topology;
use crate::facts::Facts;
use crate::finding::Finding;
use crate::manifests;
use crate::objects::{self, full_name, is_over, list_names, node_of};
use crate::read_error::{ReadError, read};
use crate::workloads::{LEASE, Role, Workload, is_of};

/// Clock skew that is allowed between this machine and the controllers.
const SKEW: SignedDuration = SignedDuration::from_secs(30);
/// Time that a ready agent has to register the driver and to publish free space.
const SETTLED: SignedDuration = SignedDuration::from_mins(1);
/// Program and container of lvmd.
const LVMD: &str = "lvmd";
/// Duration of a Lease without `leaseDurationSeconds`.
const LEASE_SECONDS: i32 = 15;

pub(super) fn agents(facts: &Facts) -> Result<Vec<Finding>, ReadError> {
    let nodes = read(&facts.nodes)?;
    let registered = facts.registered_nodes()?;
    let agents = agent_pods(facts);
    let mut findings = Vec::new();
    let (mut whole, mut without_class) = (Vec::new(), Vec::new());
    for node in nodes.iter().filter(|node| node.metadata.deletion_timestamp.is_none()) {
        let name = node.name_any();
        match missing_parts(facts.flavor, node, registered.contains(&name)).as_slice() {
            [] if has_named_class(facts.flavor, node) => whole.push(node),
            // Its device classes are optional, and their volume groups do not exist
            [] => without_class.push(name),
            // It has no storage
            [_, _, _] if !agents.contains_key(&name) => {}
            missing => {
                let found = format!("node {name}: {}", missing.join(", "));
                findings.push(find_cause(facts.flavor, node, &registered).map_or_else(
                    || Finding::fail(&found, remedy_for_node(&name, agents.get(&name))),
                    |cause| Finding::fail(&found, cause).with_commands([topology::label_command(facts.flavor, &name)]),
                ));
            }
        }
    }
    for set in facts.workloads_of(Role::Node)?.iter().filter(|set| set.ready < set.wanted) {
        findings.push(Finding::fail(describe_unready(facts, set), unready_remedy(set)));
    }
    findings.extend(startup::pod_reasons(facts, LVMD).into_iter().map(|reason| {
        let remedy = format!("follow the message; kubectl -n {} describe the pod shows details", facts.namespace);
        Finding::fail(reason, remedy)
    }));
    if whole.is_empty() && findings.is_empty() && !without_class.is_empty() {
        findings.push(Finding::fail(
            format!("no node has a volume group for a device class: {}", list_names(&without_class)),
            format!(
                "run vgs on a node: create the volume group that lvmd.yaml names (vgcreate), or name another one \
                 there; if it existed before, it was removed or renamed, or LVM lacks its disk; {HIDDEN_DISK}"
            ),
        ));
    } else if whole.is_empty() && findings.is_empty() {
        findings.push(Finding::warn(
            "no node has storage for this driver",
            "start topolvm-node and lvmd on the nodes that have a volume group",
        ));
    }
    Ok(Finding::ok_if_none(findings, describe_registered(facts.flavor, &whole, &without_class)))
}

/// Returns why the kubelet refuses the driver, if its Node shows it: the kubelet does not change a label with another
/// value.
fn find_cause(flavor: ApiFlavor, node: &Node, registered: &BTreeSet<String>) -> Option<String> {
    let value = topology::wrong_value(flavor, node).filter(|_| !registered.contains(&node.name_any()))?;
    let key = flavor.topology_key();
    Some(format!("the kubelet refuses the driver because the Node has the label {key}={value}; correct the label"))
}

/// Returns whether a node offers a device class. The default class is published with no bytes where there is none.
fn has_named_class(flavor: ApiFlavor, node: &Node) -> bool {
    objects::device_classes(flavor, node).iter().any(|(class, _)| !class.is_empty())
}

/// Describes how many nodes are registered, which of them have no free space, and which other ones have no volume
/// group.
fn describe_registered(flavor: ApiFlavor, nodes: &[&Node], without_class: &[String]) -> String {
    let count = if nodes.len() == 1 { "1 node is".to_owned() } else { format!("{} nodes are", nodes.len()) };
    let is_full = |node: &&&Node| objects::device_classes(flavor, node).iter().all(|(_, free)| *free == 0);
    let full: Vec<_> = nodes.iter().filter(is_full).map(|node| node.name_any()).collect();
    let mut description = if full.is_empty() {
        format!("{count} registered with free space")
    } else {
        format!("{count} registered; without free space: {}", list_names(full))
    };
    if !without_class.is_empty() {
        description.push_str("; without a volume group: ");
        description.push_str(&list_names(without_class));
    }
    description
}

/// Describes how many pods of a workload are ready, and why the others are not.
fn describe_unready(facts: &Facts, workload: &Workload) -> String {
    let Workload { name, ready, wanted, .. } = workload;
    let reasons = startup::reasons(facts, workload);
    let of = match (workload.role, *ready) {
        (Role::Node, _) => format!("{name}: {ready} of {wanted} pods are ready"),
        (Role::Controller, 0) => format!("{name}: none of {wanted} replicas is ready"),
        (Role::Controller, _) => format!("{name}: {ready} of {wanted} replicas are ready"),
    };
    if reasons.is_empty() { of } else { format!("{of}; {}", reasons.join("; ")) }
}

fn unready_remedy(workload: &Workload) -> String {
    let Workload { name, namespace, .. } = workload;
    format!("kubectl -n {namespace} describe {name}, and check the logs of its pods")
}

fn remedy_for_node(node: &str, agent: Option<&String>) -> String {
    match agent {
        Some(pod) => format!(
            "{pod} runs there: check its log, and that the kubelet directories in the DaemonSet match the kubelet on \
                node {node} (its flag --root-dir)"
        ),
        None => format!(
            "check that topolvm-node and lvmd run on node {node}, their logs, and the plugin directory of the kubelet"
        ),
    }
}

/// Returns the pods of agents that have been ready for a minute, by their nodes.
fn agent_pods(facts: &Facts) -> BTreeMap<String, String> {
    let is_agent = |pod: &&Pod| {
        let containers = pod.spec.iter().flat_map(|spec| spec.containers.iter());
        let runs = containers.into_iter().any(|container| is_of(container, Role::Node.program()));
        pod.namespace().as_ref() == Some(&facts.namespace) && runs && !is_over(pod)
    };
    let is_ready = |pod: &&Pod| {
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let mut ready = conditions.filter(|one| one.type_ == "Ready" && one.status == "True");
        ready.any(|one| facts.is_older(one.last_transition_time.as_ref(), SETTLED))
    };
    // A user who may not list pods gets a shorter report
    let pods = facts.pods.iter().flatten().filter(is_agent).filter(is_ready);
    pods.filter_map(|pod| Some((node_of(pod)?.to_owned(), full_name(pod)))).collect()
}

/// Returns what a node lacks of the three things that one with storage has.
fn missing_parts(flavor: ApiFlavor, node: &Node, is_registered: bool) -> Vec<&'static str> {
    let has_finalizer = node.finalizers().iter().any(|finalizer| finalizer == flavor.node_finalizer());
    let parts = [
        (is_registered, "the driver is not registered in its CSINode"),
        (!objects::device_classes(flavor, node).is_empty(), "it publishes no free space"),
        (has_finalizer, "its Node lacks the finalizer of TopoLVM"),
    ];
    parts.into_iter().filter_map(|(exists, missing)| (!exists).then_some(missing)).collect()
}

pub(super) fn controller(facts: &Facts) -> Result<Vec<Finding>, ReadError> {
    let namespace = &facts.namespace;
    let mut findings = Vec::new();
    for deployment in facts.workloads_of(Role::Controller)? {
        let found = || describe_unready(facts, deployment);
        if deployment.ready == 0 {
            findings.push(Finding::fail(found(), unready_remedy(deployment)));
        } else if deployment.ready < deployment.wanted {
            findings.push(Finding::warn(found(), unready_remedy(deployment)));
        }
    }
    let leases = read(&facts.leases)?;
    let lease = leases.iter().find(|lease| lease.namespace().as_ref() == Some(namespace));
    let spec = lease.and_then(|lease| lease.spec.as_ref());
    let holder = spec.and_then(|spec| spec.holder_identity.as_deref()).unwrap_or_default();
    let renewed = spec.and_then(|spec| spec.renew_time.as_ref());
    let seconds = spec.and_then(|spec| spec.lease_duration_seconds).unwrap_or(LEASE_SECONDS);
    let start = format!(
        "start topolvm-controller, and check in its log whether it has access to the Lease {namespace}/{LEASE}"
    );
    match renewed {
        None if lease.is_none() => findings.push(Finding::fail(
            format!(
                "the Lease {LEASE} does not exist in the namespace {namespace}: no controller has ever been the leader \
                 there"
            ),
            format!("{start}; or set another namespace of TopoLVM with -n"),
        )),
        Some(renewed) if !holder.is_empty() => {
            let age = facts.now.duration_since(renewed.0);
            if age > SignedDuration::from_secs(seconds.into()) + SKEW {
                let found = format!("{holder} holds the Lease but has not renewed it for {} s", age.as_secs());
                findings.push(Finding::fail(found, start));
            } else if findings.is_empty() {
                findings.push(Finding::ok(format!("{holder} holds the Lease {namespace}/{LEASE}")));
            }
        }
        None | Some(_) => findings.push(Finding::fail("no controller holds the Lease", start)),
    }
    Ok(findings)
}

pub(super) fn rights(facts: &Facts) -> Result<Vec<Finding>, ReadError> {
    let rights = read(&facts.rights)?;
    let mut missing: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for right in rights.iter().filter(|right| !right.is_allowed) {
        missing.entry(&right.account).or_default().push(&right.what);
    }
    let findings = missing.into_iter().map(|(account, what)| {
        Finding::fail(
            format!("the service account {}/{account} may not {}", facts.namespace, what.join(", ")),
            format!(
                "apply {}, with the namespace and the service accounts of the installation",
                manifests::roles(facts.flavor)
            ),
        )
    });
    let ok = format!("the service accounts have the {} checked rights", rights.len());
    Ok(Finding::ok_if_none(findings.collect(), ok))
}
