//! The answer of `/api/summary`: nodes with their device classes, numbers of volumes, and the findings of the checks.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;
use serde::Serialize;
use topolvm_doctor::{Checked, Finding, find_volume_problem};

use crate::cluster::Snapshot;
use crate::volume_state::state_of;
use crate::volumes::size;

/// Namespaces that are offered to choose from; of more one is found by the search.
const MOST_NAMESPACES: usize = 1000;

/// Everything that the page shows in addition to volumes.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Summary<'a> {
    version: &'static str,
    group: &'static str,
    /// False while the controller still reads the objects of the cluster.
    is_listed: bool,
    /// Those with device classes or volumes, by name.
    nodes: Vec<NodeSummary<'a>>,
    /// Number of Nodes without either.
    other_nodes: usize,
    volumes: VolumeCounts,
    namespaces: BTreeSet<&'a str>,
    /// None where the checks have not run in this process.
    checks: Option<Checks<'a>>,
}

/// A node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeSummary<'a> {
    name: &'a str,
    /// False if there are volumes of a Node that does not exist.
    exists: bool,
    classes: Vec<ClassSummary<'a>>,
}

/// A device class of a node, in bytes.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ClassSummary<'a> {
    /// Empty for a default class whose name is unknown.
    name: &'a str,
    is_default: bool,
    /// None if the node does not publish the class.
    free: Option<u64>,
    /// Part of `free` that is reserved.
    reserved: u64,
    /// Sum of the sizes of its volumes.
    used: u64,
    volumes: usize,
}

/// Numbers of volumes.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct VolumeCounts {
    total: usize,
    with_problem: usize,
    by_state: BTreeMap<&'static str, usize>,
}

/// Findings of the checks.
#[derive(Debug, Serialize)]
struct Checks<'a> {
    at: Timestamp,
    findings: Vec<NamedFinding<'a>>,
    more: usize,
}

/// A finding with the name of its check.
#[derive(Debug, Serialize)]
struct NamedFinding<'a> {
    check: &'static str,
    #[serde(flatten)]
    finding: &'a Finding,
}

/// Returns the summary of a cluster.
pub(crate) fn summarize(snapshot: &Snapshot) -> Summary<'_> {
    let mut counts = VolumeCounts { total: snapshot.volumes.len(), ..VolumeCounts::default() };
    let mut used: HashMap<(&str, &str), (u64, usize)> = HashMap::new();
    let mut namespaces = BTreeSet::new();
    for volume in &snapshot.volumes {
        *counts.by_state.entry(state_of(volume)).or_default() += 1;
        let problem = find_volume_problem(snapshot.flavor, volume, snapshot.has_node_of(volume), snapshot.now);
        counts.with_problem += usize::from(problem.is_some());
        let (bytes, volumes) = used.entry((&volume.spec.node_name, snapshot.class_of(volume))).or_default();
        // A volume that does not exist yet uses no space; it may be part of the reservations
        let size = volume.volume_id().and_then(|_| size(volume));
        *bytes = bytes.saturating_add(size.unwrap_or_default());
        *volumes += 1;
        if namespaces.len() < MOST_NAMESPACES
            && let Some((namespace, _)) = volume.claim(snapshot.flavor)
        {
            namespaces.insert(namespace);
        }
    }
    let nodes = nodes(snapshot, used);
    let with_storage = nodes.iter().filter(|node| node.exists).count();
    Summary {
        version: env!("CARGO_PKG_VERSION"),
        group: snapshot.flavor.group(),
        is_listed: snapshot.is_listed,
        other_nodes: snapshot.nodes.len().saturating_sub(with_storage),
        nodes,
        volumes: counts,
        namespaces,
        checks: snapshot.checked.as_deref().map(checks),
    }
}

/// Returns the nodes that have device classes or volumes. `used` has bytes and number of the volumes by node and class.
fn nodes<'a>(snapshot: &'a Snapshot, mut used: HashMap<(&'a str, &'a str), (u64, usize)>) -> Vec<NodeSummary<'a>> {
    let mut classes: BTreeMap<&str, Vec<ClassSummary<'_>>> = BTreeMap::new();
    for class in &snapshot.classes {
        let name = class.device_class.as_str();
        let (bytes, volumes) = used.remove(&(class.node.as_str(), name)).unwrap_or_default();
        classes.entry(&class.node).or_default().push(ClassSummary {
            name,
            is_default: class.is_default,
            free: Some(class.free),
            reserved: class.reserved.min(class.free),
            used: bytes,
            volumes,
        });
    }
    // Volumes of classes that no node publishes any more
    for ((node, name), (used, volumes)) in used {
        let is_default = name.is_empty();
        classes.entry(node).or_default().push(ClassSummary {
            name,
            is_default,
            free: None,
            reserved: 0,
            used,
            volumes,
        });
    }
    let node = |(name, mut classes): (&'a str, Vec<ClassSummary<'a>>)| {
        classes.sort_unstable_by_key(|class| class.name);
        NodeSummary { name, exists: !snapshot.is_listed || snapshot.nodes.contains(name), classes }
    };
    classes.into_iter().map(node).collect()
}

fn checks(checked: &Checked) -> Checks<'_> {
    let findings = checked.findings.iter().map(|(check, finding)| NamedFinding { check, finding });
    Checks { at: checked.at, findings: findings.collect(), more: checked.more }
}
