//! The problem of a volume that its LogicalVolume alone shows, with its remedy.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::Serialize;
use topolvm_api::{ApiFlavor, LogicalVolume, Readiness, lost_message};

/// Time that a change of a volume may take before it is a problem.
const GRACE_PERIOD: SignedDuration = SignedDuration::from_mins(2);
/// gRPC code RESOURCE_EXHAUSTED, with which lvmd reports too little free space.
const RESOURCE_EXHAUSTED: i32 = 8;

/// A problem of a volume with its remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VolumeProblem {
    /// The fault.
    pub what: String,
    /// The remedy.
    pub remedy: String,
}

impl VolumeProblem {
    /// Makes a problem.
    pub fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into() }
    }
}

/// Returns whether a change that began at `since` takes longer than one should.
pub fn is_overdue(since: Option<&Time>, now: Timestamp) -> bool {
    since.is_some_and(|since| now.duration_since(since.0) > GRACE_PERIOD)
}

/// Returns the first problem of a LogicalVolume, from the disk upwards: a problem below explains those above.
/// `has_node` is true if its Node exists.
pub fn find_volume_problem(
    flavor: ApiFlavor,
    volume: &LogicalVolume,
    has_node: bool,
    now: Timestamp,
) -> Option<VolumeProblem> {
    let node = volume.spec.node_name.as_str();
    if !has_node {
        return Some(VolumeProblem::new(
            format!("its Node {node} does not exist"),
            "bring the node back under this name, or abandon its data; see docs/node-maintenance.md",
        ));
    }
    if volume.is_lost() {
        let text = lost_message(volume);
        let (what, remedy) = text.split_once("; ").unwrap_or((&text, "restore the LV, or delete the claim"));
        return Some(VolumeProblem::new(what, remedy));
    }
    if let Some(message) = volume.removal_blocked().filter(|_| volume.is_deleting()) {
        let (what, remedy) = message.split_once("; ").unwrap_or((message, "see its condition Removed"));
        return Some(VolumeProblem::new(format!("it is being deleted, but {what}"), remedy));
    }
    if volume.is_deleting() {
        let is_overdue = is_overdue(volume.metadata.deletion_timestamp.as_ref(), now);
        return is_overdue.then(|| deletion_problem(flavor, volume));
    }
    if let Some((code, message)) = volume.failure() {
        return Some(failure_problem(volume, code, message));
    }
    let is_behind =
        volume.readiness() != Readiness::VolumeReady && is_overdue(volume.metadata.creation_timestamp.as_ref(), now);
    is_behind.then(|| {
        VolumeProblem::new(
            format!("topolvm-node on node {node} has not yet applied the spec of the LogicalVolume"),
            format!("check that topolvm-node and lvmd run on node {node}, and their logs"),
        )
    })
}

fn deletion_problem(flavor: ApiFlavor, volume: &LogicalVolume) -> VolumeProblem {
    let (name, node) = (volume.name(), &volume.spec.node_name);
    if !volume.has_finalizer(flavor.logical_volume_finalizer()) {
        let holders = volume.metadata.finalizers.iter().flatten().cloned().collect::<Vec<_>>().join(", ");
        return VolumeProblem::new(
            format!("it is deleted, but other finalizers block the deletion: {holders}"),
            "check why the owner of this finalizer does not remove it",
        );
    }
    if volume.annotation(flavor.pending_deletion()).is_some() {
        return VolumeProblem::new(
            format!("it is deleted, but its annotation {} stops the agent", flavor.pending_deletion()),
            format!("remove the annotation: kubectl annotate logicalvolume {name} {}-", flavor.pending_deletion()),
        );
    }
    if let Some(why) = volume.removal_failure() {
        return VolumeProblem::new(
            format!("it is deleted, but its LV on node {node} cannot be removed: {why}"),
            "release it from the holder that the message names; topolvm-node retries every 30 seconds",
        );
    }
    VolumeProblem::new(
        format!("it is deleted, but topolvm-node on node {node} has not removed the LV"),
        format!(
            "see kubectl topolvm events for the reason (for example a process that still uses it), and check that \
                topolvm-node runs on node {node}"
        ),
    )
}

fn failure_problem(volume: &LogicalVolume, code: i32, message: &str) -> VolumeProblem {
    let node = &volume.spec.node_name;
    let class = if volume.spec.device_class.is_empty() { "default" } else { &volume.spec.device_class };
    let what = if volume.volume_id().is_some() { "expansion failed" } else { "creation failed" };
    let remedy = if code == RESOURCE_EXHAUSTED {
        format!("free space in the device class {class} of node {node}, extend its volume group, or request less")
    } else {
        format!("follow the message; lvmd and topolvm-node on node {node} log details")
    };
    VolumeProblem::new(format!("{what}: {message}"), remedy)
}
