//! Checks of storage capacity tracking: csi-provisioner's settings, and the CSIStorageCapacity objects.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use kube_core::ResourceExt;
use topolvm_api::{ApiFlavor, NodeCapacity, claim_names, parse_bytes};

use super::switch::{find_provisioner, publishes_itself};
use crate::facts::Facts;
use crate::finding::Finding;
use crate::mode::Mode;
use crate::mode_detection::mode;
use crate::objects::{class_of, device_class, list_names, option_class, unscheduled, waits_for_pods};
use crate::read_error::{ReadError, read};
use crate::shell::quote;

/// Time in which free space is published: csi-provisioner asks once a minute.
const PUBLISHED: SignedDuration = SignedDuration::from_mins(2);
/// Age from which a difference is no delay any more.
const OUT_OF_DATE: SignedDuration = SignedDuration::from_mins(5);
/// Age of the last renewal up to which csi-provisioner is taken to run.
const ALIVE: SignedDuration = SignedDuration::from_mins(5);

/// An object about a node and a StorageClass.
#[derive(Clone, Copy)]
struct Published<'a> {
    object: &'a CSIStorageCapacity,
    node: &'a str,
}

impl Published<'_> {
    fn describe(&self) -> String {
        format!("the CSIStorageCapacity of StorageClass {} on node {}", self.object.storage_class_name, self.node)
    }

    fn deletion(&self) -> String {
        let (namespace, name) = (self.object.namespace().unwrap_or_default(), self.object.name_any());
        format!("kubectl -n {} delete csistoragecapacity {}", quote(&namespace), quote(&name))
    }
}

pub(super) fn tracking(facts: &Facts) -> Result<Vec<Finding>, ReadError> {
    let _webhooks = read(&facts.webhooks)?;
    if mode(facts) == Mode::Extender {
        return Ok(vec![Finding::ok("the scheduler extender is used instead")]);
    }
    let mut findings: Vec<_> = find_provisioner_problem(facts).into_iter().collect();
    let objects = published(facts)?;
    findings.extend(find_superfluous(facts, &objects)?);
    findings.extend(find_out_of_date(facts, &objects)?);
    // The previous finding already contains the reason why there are none
    if findings.is_empty() {
        findings.extend(find_missing(facts, &objects)?);
    }
    Ok(Finding::ok_if_none(
        findings,
        format!("{} CSIStorageCapacity objects publish free space to kube-scheduler", objects.len()),
    ))
}

fn find_provisioner_problem(facts: &Facts) -> Option<Finding> {
    let provisioner = find_provisioner(facts)?;
    if publishes_itself(facts) {
        return provisioner.publishes().then(|| {
            let found = format!(
                "both {} and topolvm-controller (--controllers=capacity) publish free space",
                provisioner.name()
            );
            Finding::warn(found, "remove --enable-capacity from csi-provisioner")
        });
    }
    let lacks = provisioner.lacks();
    if lacks.is_empty() {
        return None;
    }
    let texts = lacks.iter().map(|lack| lack.found.as_str()).collect::<Vec<_>>().join(", ");
    let remedy =
        "add these settings, or set --controllers=capacity for topolvm-controller, which then publishes instead";
    let finding = if lacks.iter().any(|lack| lack.is_needed) {
        Finding::fail(format!("{} does not publish free space: {texts}", provisioner.name()), remedy)
    } else {
        Finding::warn(format!("{}: {texts}", provisioner.name()), remedy)
    };
    Some(finding.with_commands([provisioner.command(lacks.into_iter().map(|lack| lack.patch))]))
}

/// Returns the objects about nodes of ours.
fn published<'a>(facts: &'a Facts) -> Result<Vec<Published<'a>>, ReadError> {
    let key = facts.flavor.topology_key();
    let of_node = |object: &'a CSIStorageCapacity| {
        let node = object.node_topology.as_ref()?.match_labels.as_ref()?.get(key)?;
        Some(Published { object, node })
    };
    Ok(read(&facts.capacities)?.iter().filter_map(of_node).collect())
}

/// Returns the objects of nodes and StorageClasses that do not exist, and second ones of the same.
fn find_superfluous(facts: &Facts, objects: &[Published<'_>]) -> Result<Vec<Finding>, ReadError> {
    let nodes: BTreeSet<_> = read(&facts.nodes)?.iter().map(ResourceExt::name_any).collect();
    let classes: BTreeSet<_> = facts.our_classes()?.iter().map(|class| class.name_any()).collect();
    let mut seen = BTreeSet::new();
    let mut findings = Vec::new();
    let remedy = "the component that publishes free space removes it; delete it if it remains";
    for one in objects {
        let what = if !nodes.contains(one.node) {
            "the node does not exist"
        } else if !classes.contains(&one.object.storage_class_name) {
            "no StorageClass of this driver has this name"
        } else if !seen.insert((one.node, one.object.storage_class_name.as_str())) {
            "it is a duplicate"
        } else {
            continue;
        };
        let found = format!("{}: {what}", one.describe());
        findings.push(Finding::warn(found, remedy).with_commands([one.deletion()]));
    }
    Ok(findings)
}

/// Returns the objects that have published more free space than the node has for some time.
fn find_out_of_date(facts: &Facts, objects: &[Published<'_>]) -> Result<Vec<Finding>, ReadError> {
    let nodes = read(&facts.nodes)?;
    let classes = facts.our_classes()?;
    let finding = |one: &Published<'_>| {
        let node = nodes.iter().find(|node| node.metadata.name.as_deref() == Some(one.node))?;
        let class = classes.iter().find(|class| class.name_any() == one.object.storage_class_name)?;
        let free = free_bytes(facts, node, class)?;
        let claimed = parse_bytes(one.object.capacity.as_ref()?).ok()?;
        let published = last_change(&node.metadata, |entry| writes_capacity(facts.flavor, entry));
        let changed = published.max(last_change(&one.object.metadata, |_| true))?;
        (claimed > free && facts.now.duration_since(changed) >= OUT_OF_DATE).then(|| {
            let found = format!("{} reports {claimed} bytes, but the node has only {free}", one.describe());
            let remedy = format!("check the log of {}; a deleted object is recreated", publisher(facts));
            Finding::warn(found, remedy).with_commands([one.deletion()])
        })
    };
    Ok(objects.iter().filter_map(finding).collect())
}

/// Returns the bytes that volumes of a StorageClass can have on a node.
fn free_bytes(facts: &Facts, node: &Node, class: &StorageClass) -> Option<u64> {
    let capacity = NodeCapacity::from_annotations(facts.flavor, node.annotations());
    let layout = capacity.layout(device_class(facts.flavor, class), option_class(facts.flavor, class))?;
    Some(layout.free)
}

/// Returns the time of the last write to an object by those whose entries are wanted.
fn last_change(metadata: &ObjectMeta, is_wanted: impl Fn(&ManagedFieldsEntry) -> bool) -> Option<Timestamp> {
    let entries = metadata.managed_fields.iter().flatten().filter(|entry| is_wanted(entry));
    entries.filter_map(|entry| entry.time.as_ref().map(|time| time.0)).max()
}

/// Returns true for an entry about annotations with free space.
fn writes_capacity(flavor: ApiFlavor, entry: &ManagedFieldsEntry) -> bool {
    let fields = entry.fields_v1.as_ref().and_then(|fields| fields.0.pointer("/f:metadata/f:annotations")?.as_object());
    let mut keys = fields.into_iter().flatten().filter_map(|(key, _)| key.strip_prefix("f:"));
    keys.any(|key| flavor.is_capacity_annotation(key))
}

/// Returns the problem of nodes and StorageClasses without an object, if a program publishes them or pods wait for
/// them.
fn find_missing(facts: &Facts, objects: &[Published<'_>]) -> Result<Option<Finding>, ReadError> {
    let settled = |metadata: &ObjectMeta| facts.is_older(metadata.creation_timestamp.as_ref(), PUBLISHED);
    let registered = facts.registered_nodes()?;
    let nodes = read(&facts.nodes)?.iter().filter(|node| settled(&node.metadata)).map(ResourceExt::name_any);
    let nodes: Vec<_> = nodes.filter(|node| registered.contains(node)).collect();
    // Of those that are bound at once csi-provisioner publishes nothing
    let is_published = |class: &&&StorageClass| {
        waits_for_pods(class) && class.allowed_topologies.is_none() && settled(&class.metadata)
    };
    let ours = facts.our_classes()?;
    let classes: Vec<_> = ours.iter().filter(is_published).map(|class| class.name_any()).collect();
    let has =
        |node: &str, class: &str| objects.iter().any(|one| one.node == node && one.object.storage_class_name == class);
    let pairs = nodes.iter().flat_map(|node| classes.iter().map(move |class| (node, class)));
    let missing: Vec<_> = pairs.filter(|(node, class)| !has(node, class)).collect();
    if missing.is_empty() || !(is_publishing(facts) || is_waited_for(facts, &ours)) {
        return Ok(None);
    }
    let names = list_names(missing.iter().map(|(node, class)| format!("{node} and {class}")));
    let remedy = if publishes_itself(facts) {
        "check the log of the leading topolvm-controller replica, and its rights for csistoragecapacities"
    } else {
        "check that csi-provisioner runs with --enable-capacity in the pod of topolvm-controller, and check its log; \
         it needs the variables POD_NAME and NAMESPACE, and rights for csistoragecapacities"
    };
    let found = format!("CSIStorageCapacity objects are missing for node and StorageClass: {names}");
    Ok(Some(if objects.is_empty() { Finding::fail(found, remedy) } else { Finding::warn(found, remedy) }))
}

/// Returns the program that publishes free space.
fn publisher(facts: &Facts) -> &'static str {
    if publishes_itself(facts) { "topolvm-controller" } else { "csi-provisioner" }
}

fn is_publishing(facts: &Facts) -> bool {
    let mut renewed = facts.provisioner_leases.iter().flatten().filter_map(|lease| {
        let spec = lease.spec.as_ref().filter(|_| lease.namespace().as_ref() == Some(&facts.namespace))?;
        spec.renew_time.as_ref()
    });
    find_provisioner(facts).is_some()
        || publishes_itself(facts)
        || renewed.any(|time| facts.now.duration_since(time.0) < ALIVE)
}

/// Returns true if a pod without a node has a claim of one of these StorageClasses.
fn is_waited_for(facts: &Facts, classes: &[&StorageClass]) -> bool {
    let claims = facts.claims.iter().flatten();
    let ours: BTreeSet<_> = claims
        .filter(|claim| class_of(claim, classes).is_some())
        .map(|claim| (claim.namespace(), claim.name_any()))
        .collect();
    let waits = |pod: &Pod| {
        unscheduled(pod).is_some() && claim_names(pod).into_iter().any(|claim| ours.contains(&(pod.namespace(), claim)))
    };
    facts.pods.iter().flatten().any(waits)
}
