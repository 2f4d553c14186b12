//! Problems of a volume, with their remedies: those that the LogicalVolume alone shows, then those of its claim and its
//! PersistentVolume.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;
use topolvm_api::{ApiFlavor, LogicalVolume};
use topolvm_doctor::{VolumeProblem, find_volume_problem, is_overdue};

use super::index::Index;
use super::{Binding, phase};

fn problem(what: impl Into<String>, remedy: impl Into<String>) -> VolumeProblem {
    VolumeProblem::new(what, remedy)
}

/// Returns the first problem of a volume, from the disk upwards: a problem below explains those above.
pub(super) fn find_problem(
    flavor: ApiFlavor,
    index: &Index<'_>,
    binding: Binding<'_>,
    now: Timestamp,
) -> Option<VolumeProblem> {
    let is_old = |since: Option<&Time>| is_overdue(since, now);
    let Some(volume) = binding.volume else { return missing_volume_problem(binding, is_old) };
    let own = find_volume_problem(flavor, volume, index.has_node(&volume.spec.node_name), now);
    if own.is_some() || volume.is_deleting() { own } else { binding_problem(volume, binding, is_old) }
}

/// Returns the problem of the claim or PersistentVolume of an existing volume.
fn binding_problem(
    volume: &LogicalVolume,
    binding: Binding<'_>,
    is_old: impl Fn(Option<&Time>) -> bool,
) -> Option<VolumeProblem> {
    if let Some(persistent) = binding.persistent {
        return persistent_problem(persistent, is_old);
    }
    let name = volume.name();
    if let Some(claim) = binding.claim.filter(|claim| phase(claim) == "Lost") {
        let claim = claim.name_any();
        return Some(problem(
            format!("the PersistentVolume of the claim {claim} was deleted, but the volume still exists"),
            format!("create a PersistentVolume with volumeHandle {}", volume.volume_id().unwrap_or(name)),
        ));
    }
    let is_unused = !volume.is_snapshot() && is_old(volume.metadata.creation_timestamp.as_ref());
    is_unused.then(|| {
        problem(
            "no PersistentVolume refers to it",
            format!("if its data is not needed, delete it: kubectl delete logicalvolume {name}"),
        )
    })
}

/// Returns the problem of the PersistentVolume of an existing volume.
fn persistent_problem(persistent: &PersistentVolume, is_old: impl Fn(Option<&Time>) -> bool) -> Option<VolumeProblem> {
    let name = persistent.name_any();
    match persistent_phase(persistent) {
        "Released" if policy(persistent) == "Retain" => Some(problem(
            "its claim was deleted, and its PersistentVolume is kept (reclaim policy Retain)",
            format!(
                "to use it again, remove spec.claimRef from persistentvolume/{name}; if its data is not needed, set \
                    the reclaim policy of persistentvolume/{name} to Delete"
            ),
        )),
        "Released" if is_old(persistent.metadata.deletion_timestamp.as_ref()) => Some(problem(
            "its claim was deleted, and the provisioner has not deleted the volume yet",
            "check the logs of topolvm-controller and csi-provisioner, and kubectl topolvm events",
        )),
        "Failed" => Some(problem(
            format!("the provisioner could not delete it: {}", persistent_message(persistent)),
            "follow the message; the provisioner retries automatically",
        )),
        _ => None,
    }
}

/// Returns the problem of a claim or PersistentVolume without a LogicalVolume.
fn missing_volume_problem(binding: Binding<'_>, is_old: impl Fn(Option<&Time>) -> bool) -> Option<VolumeProblem> {
    if let Some(persistent) = binding.persistent {
        return Some(problem(
            "its LogicalVolume was deleted",
            format!(
                "if the LV still exists on the node (lvs -o +tags), recreate the LogicalVolume from a backup of the \
                    object; otherwise delete the claim and persistentvolume/{}, and restore a backup of the data",
                persistent.name_any(),
            ),
        ));
    }
    let claim = binding.claim?;
    if phase(claim) == "Lost" {
        return Some(problem(
            "the PersistentVolume and LogicalVolume of the claim were deleted",
            "delete the claim and restore a backup of the data",
        ));
    }
    let annotations = claim.annotations();
    let is_asked_for = annotations.contains_key("volume.kubernetes.io/storage-provisioner");
    (is_asked_for && is_old(claim.metadata.creation_timestamp.as_ref())).then(|| {
        problem(
            "the claim has no volume yet",
            "see kubectl topolvm events for the reason, and kubectl topolvm doctor; a claim of a StorageClass with \
                WaitForFirstConsumer needs a pod",
        )
    })
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
