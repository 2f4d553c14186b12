//! Problems of a volume, with their remedies.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use serde::Serialize;
use topolvm_api::{ApiFlavor, LogicalVolume, Readiness, lost_message};

use super::index::Index;
use super::{Binding, phase, readiness};

/// Time that a change may take before it is a problem.
const GRACE_PERIOD: SignedDuration = SignedDuration::from_mins(2);
/// gRPC code RESOURCE_EXHAUSTED, with which lvmd reports too little free space.
const RESOURCE_EXHAUSTED: i32 = 8;

/// A problem with its remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Problem {
    pub(crate) what: String,
    pub(crate) remedy: String,
}

fn problem(what: impl Into<String>, remedy: impl Into<String>) -> Problem {
    Problem { what: what.into(), remedy: remedy.into() }
}

/// Returns the first problem of a volume, from the disk upwards: a problem below explains those above.
pub(super) fn find_problem(
    flavor: ApiFlavor,
    index: &Index<'_>,
    binding: Binding<'_>,
    now: Timestamp,
) -> Option<Problem> {
    let is_old = |since: Option<&Time>| since.is_some_and(|since| now.duration_since(since.0) > GRACE_PERIOD);
    let Some(volume) = binding.volume else { return missing_volume_problem(binding, is_old) };
    let node = volume.spec.node_name.as_str();
    if !index.has_node(node) {
        return Some(problem(
            format!("its Node {node} is not in the cluster"),
            "bring the node back under this name, or give its data up as docs/node-maintenance.md says",
        ));
    }
    if volume.is_lost() {
        let text = lost_message(volume);
        let (what, remedy) = text.split_once("; ").unwrap_or((&text, "restore the LV, or delete the claim"));
        return Some(problem(what, remedy));
    }
    if volume.is_deleting() {
        return is_old(volume.metadata.deletion_timestamp.as_ref()).then(|| deletion_problem(flavor, volume));
    }
    if let Some((code, message)) = volume.failure() {
        return Some(failure_problem(volume, code, message));
    }
    if readiness(volume) != Readiness::VolumeReady && is_old(volume.metadata.creation_timestamp.as_ref()) {
        return Some(problem(
            format!("topolvm-node on node {node} has not done yet what the LogicalVolume asks for"),
            format!("see that topolvm-node and lvmd run on node {node} and what they log"),
        ));
    }
    binding_problem(volume, binding, is_old)
}

/// Returns the problem of the claim or PersistentVolume of an existing volume.
fn binding_problem(
    volume: &LogicalVolume,
    binding: Binding<'_>,
    is_old: impl Fn(Option<&Time>) -> bool,
) -> Option<Problem> {
    if let Some(persistent) = binding.persistent {
        return persistent_problem(persistent, is_old);
    }
    let name = volume.name();
    if let Some(claim) = binding.claim.filter(|claim| phase(claim) == "Lost") {
        let claim = claim.name_any();
        return Some(problem(
            format!("the PersistentVolume of the claim {claim} is gone, and the volume is still there"),
            format!("make a PersistentVolume again whose volumeHandle is {}", volume.volume_id().unwrap_or(name)),
        ));
    }
    let is_unused = !volume.is_snapshot() && is_old(volume.metadata.creation_timestamp.as_ref());
    is_unused.then(|| {
        problem(
            "no PersistentVolume refers to it",
            format!("if nobody needs its data, delete it: kubectl delete logicalvolume {name}"),
        )
    })
}

/// Returns the problem of the PersistentVolume of an existing volume.
fn persistent_problem(persistent: &PersistentVolume, is_old: impl Fn(Option<&Time>) -> bool) -> Option<Problem> {
    let name = persistent.name_any();
    match persistent_phase(persistent) {
        "Released" if policy(persistent) == "Retain" => Some(problem(
            "its claim was deleted, and its PersistentVolume is kept (reclaim policy Retain)",
            format!(
                "to use it again, take spec.claimRef off persistentvolume/{name}; if nobody needs its data, set the \
                    reclaim policy of persistentvolume/{name} to Delete"
            ),
        )),
        "Released" if is_old(persistent.metadata.deletion_timestamp.as_ref()) => Some(problem(
            "its claim was deleted, and csi-provisioner has not deleted the volume yet",
            "see what csi-provisioner and topolvm-controller log, and kubectl topolvm events",
        )),
        "Failed" => Some(problem(
            format!("csi-provisioner could not delete it: {}", persistent_message(persistent)),
            "do what the message says; csi-provisioner tries again by itself",
        )),
        _ => None,
    }
}

/// Returns the problem of a claim or PersistentVolume without a LogicalVolume.
fn missing_volume_problem(binding: Binding<'_>, is_old: impl Fn(Option<&Time>) -> bool) -> Option<Problem> {
    if let Some(persistent) = binding.persistent {
        return Some(problem(
            "its LogicalVolume is gone",
            format!(
                "if the LV is still on the node (lvs -o +tags), make a LogicalVolume again from a backup of the \
                    object; otherwise delete the \
                 claim and persistentvolume/{}, and restore a backup of the data",
                persistent.name_any(),
            ),
        ));
    }
    let claim = binding.claim?;
    if phase(claim) == "Lost" {
        return Some(problem(
            "PersistentVolume and LogicalVolume of the claim are gone",
            "delete the claim and restore a backup of the data",
        ));
    }
    let annotations = claim.annotations();
    let is_asked_for = annotations.contains_key("volume.kubernetes.io/storage-provisioner");
    (is_asked_for && is_old(claim.metadata.creation_timestamp.as_ref())).then(|| {
        problem(
            "no volume is made for the claim",
            "see kubectl topolvm events for the reason, and kubectl topolvm doctor; a claim whose StorageClass waits \
                for a pod needs one",
        )
    })
}

fn deletion_problem(flavor: ApiFlavor, volume: &LogicalVolume) -> Problem {
    let (name, node) = (volume.name(), &volume.spec.node_name);
    if !volume.has_finalizer(flavor.logical_volume_finalizer()) {
        let holders = volume.metadata.finalizers.iter().flatten().cloned().collect::<Vec<_>>().join(", ");
        return problem(
            format!("it is deleted, and something else holds the object: {holders}"),
            "see to it that whoever has put this finalizer takes it off",
        );
    }
    if volume.annotation(flavor.pending_deletion()).is_some() {
        return problem(
            format!("it is deleted, and its annotation {} keeps the agent away", flavor.pending_deletion()),
            format!("take the annotation off: kubectl annotate logicalvolume {name} {}-", flavor.pending_deletion()),
        );
    }
    problem(
        format!("it is deleted, and topolvm-node on node {node} has not removed the LV"),
        format!(
            "see kubectl topolvm events for the reason (who still uses it, for instance), and that topolvm-node runs \
                on node {node}"
        ),
    )
}

fn failure_problem(volume: &LogicalVolume, code: i32, message: &str) -> Problem {
    let node = &volume.spec.node_name;
    let class = if volume.spec.device_class.is_empty() { "default" } else { &volume.spec.device_class };
    let what = if volume.volume_id().is_some() { "it could not grow" } else { "it could not be made" };
    let remedy = if code == RESOURCE_EXHAUSTED {
        format!("free space in the device class {class} of node {node}, extend its volume group, or ask for less")
    } else {
        format!("do what the message says; lvmd and topolvm-node on node {node} log more")
    };
    problem(format!("{what}: {message}"), remedy)
}

fn persistent_phase(persistent: &PersistentVolume) -> &str {
    persistent.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn persistent_message(persistent: &PersistentVolume) -> &str {
    persistent.status.as_ref().and_then(|status| status.message.as_deref()).unwrap_or("no message")
}

fn policy(persistent: &PersistentVolume) -> &str {
    persistent.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref()).unwrap_or_default()
}
