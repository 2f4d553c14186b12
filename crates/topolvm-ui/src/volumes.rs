//! The answer of `/api/volumes`: volumes that are asked for, in their order, a page of them.

use std::cmp::Ordering;

use jiff::Timestamp;
use serde::Serialize;
use topolvm_api::{LogicalVolume, parse_bytes};
use topolvm_doctor::{VolumeProblem, find_volume_problem};

use crate::cluster::Snapshot;
use crate::query::{Sort, VolumeQuery};
use crate::volume_state::state_of;

/// A page of volumes.
#[derive(Debug, Serialize)]
pub(crate) struct VolumePage<'a> {
    /// Number of volumes of the cluster.
    total: usize,
    /// Number of volumes that are asked for.
    matched: usize,
    /// Number of those before the first row.
    offset: usize,
    rows: Vec<VolumeRow<'a>>,
}

/// A volume.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VolumeRow<'a> {
    /// Name of the LogicalVolume.
    name: &'a str,
    /// Empty if the object does not name its claim.
    namespace: &'a str,
    claim: &'a str,
    node: &'a str,
    /// Empty for a default class whose name is unknown.
    class: &'a str,
    /// The real size, or the requested one until the volume exists.
    size: Option<u64>,
    /// The requested size, where it is another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    requested: Option<u64>,
    state: &'static str,
    /// Name of the LogicalVolume of which it is a copy.
    #[serde(skip_serializing_if = "str::is_empty")]
    source: &'a str,
    /// Name of the LV in LVM; empty until there is one.
    lv: &'a str,
    created: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<VolumeProblem>,
}

/// A volume that is asked for, with what it is sorted by.
struct Match<'a> {
    volume: &'a LogicalVolume,
    claim: (&'a str, &'a str),
    class: &'a str,
    state: &'static str,
    problem: Option<VolumeProblem>,
}

/// Returns the page of volumes that a query asks for.
pub(crate) fn find_volumes<'a>(snapshot: &'a Snapshot, query: &VolumeQuery) -> VolumePage<'a> {
    let mut matches: Vec<_> =
        snapshot.volumes.iter().filter_map(|volume| match_volume(snapshot, volume, query)).collect();
    // Names are unique, so that a page goes on where the one before it ended
    matches.sort_unstable_by(|a, b| {
        let order = compare(query.sort, a, b);
        let order = if query.is_descending { order.reverse() } else { order };
        order.then_with(|| without_claim_last(a, b)).then_with(|| a.volume.name().cmp(b.volume.name()))
    });
    let (total, matched) = (snapshot.volumes.len(), matches.len());
    let rows = matches.into_iter().skip(query.offset).take(query.limit).map(row).collect();
    VolumePage { total, matched, offset: query.offset, rows }
}

/// Returns the volume if it is asked for.
fn match_volume<'a>(snapshot: &'a Snapshot, volume: &'a LogicalVolume, query: &VolumeQuery) -> Option<Match<'a>> {
    let claim = volume.claim(snapshot.flavor).unwrap_or_default();
    let class = snapshot.class_of(volume);
    let is = |wanted: &str, value: &str| wanted.is_empty() || wanted == value;
    if !is(&query.namespace, claim.0) || !is(&query.node, &volume.spec.node_name) || !is(&query.class, class) {
        return None;
    }
    let names = [claim.0, claim.1, volume.name(), &volume.spec.node_name, class, volume.uid()];
    // Names in Kubernetes have lower case
    if !query.words.iter().all(|word| names.iter().any(|name| name.contains(word.as_str()))) {
        return None;
    }
    let state = state_of(volume);
    let problem = find_volume_problem(snapshot.flavor, volume, snapshot.has_node_of(volume), snapshot.now);
    let is_in_state = match query.state.as_str() {
        "problem" => problem.is_some(),
        wanted => is(wanted, state),
    };
    is_in_state.then_some(Match { volume, claim, class, state, problem })
}

fn compare(sort: Sort, a: &Match<'_>, b: &Match<'_>) -> Ordering {
    match sort {
        Sort::Problem => b.problem.is_some().cmp(&a.problem.is_some()),
        Sort::Name => without_claim_last(a, b),
        Sort::Size => size(a.volume).cmp(&size(b.volume)),
        Sort::Node => a.volume.spec.node_name.cmp(&b.volume.spec.node_name),
        Sort::Class => a.class.cmp(b.class),
        Sort::State => a.state.cmp(b.state),
        Sort::Age => created(b.volume).cmp(&created(a.volume)),
    }
}

fn without_claim_last(a: &Match<'_>, b: &Match<'_>) -> Ordering {
    a.claim.1.is_empty().cmp(&b.claim.1.is_empty()).then_with(|| a.claim.cmp(&b.claim))
}

/// Returns the real size, or the requested one until the volume exists.
pub(crate) fn size(volume: &LogicalVolume) -> Option<u64> {
    volume.current_bytes().or_else(|| parse_bytes(&volume.spec.size).ok())
}

fn created(volume: &LogicalVolume) -> Option<Timestamp> {
    volume.metadata.creation_timestamp.as_ref().map(|time| time.0)
}

fn row(found: Match<'_>) -> VolumeRow<'_> {
    let Match { volume, claim, class, state, problem } = found;
    let size = size(volume);
    VolumeRow {
        name: volume.name(),
        namespace: claim.0,
        claim: claim.1,
        node: &volume.spec.node_name,
        class,
        size,
        requested: parse_bytes(&volume.spec.size).ok().filter(|requested| size.is_some_and(|size| *requested > size)),
        state,
        source: &volume.spec.source,
        lv: volume.volume_id().unwrap_or_default(),
        created: created(volume),
        problem,
    }
}
