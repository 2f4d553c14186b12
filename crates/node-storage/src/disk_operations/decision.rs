//! The next step of a disk operation: a pure function of its object, of the operations before it, and of the storage
//! that lvmd reports.

use topolvm_api::{
    DiskOperation, DiskOperationType, EvacuationStatus, NodeStorageStatus, Phase, PhysicalVolumeStatus,
    VolumeGroupStatus,
};
use topolvm_kube::has_finalizer;
use topolvm_proto::lvmd::{AddDiskRequest, DiskRequest, EvacuateDiskRequest};

use super::disk::{Disk, describe, find_conflict};
use crate::lvmd_watch::Reading;

const SILENT: &str = "waiting for lvmd to report the disks of the node";
const UNCERTAIN: &str = "no volume group has this disk, and LVM cannot be asked about all of them at the moment";
const NOT_FOUND: &str = "the node has no disk of this name; kubectl topolvm disk list NODE shows its disks, and the \
     names that identify them";
const IN_NO_GROUP: &str = "the disk is in no volume group";
const NOT_MISSING: &str = "the disk is present, and Replace is for a missing disk; add another disk, then remove this \
     one: its volumes are moved";
pub(super) const CANCELED: &str = "the DiskOperation was deleted; what has been moved stays where it is";
const LEFT: &str = "the disk has left its volume group";

/// A call of lvmd.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum DiskCall {
    Add(AddDiskRequest),
    Evacuate(EvacuateDiskRequest),
    Stop(DiskRequest),
    Replace(DiskRequest),
}

/// The identity of a disk, recorded before anything is asked of lvmd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RecordedDisk {
    pub(super) uuid: String,
    pub(super) volume_group: String,
    pub(super) path: String,
}

/// The end of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    Succeeded(String),
    Failed { reason: &'static str, message: String },
    Canceled(String),
}

/// The next step of an operation.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// It cannot go on yet, for this reason.
    Wait(&'static str),
    /// The disk is to be recorded.
    Record(RecordedDisk),
    /// The finalizer is to be added.
    Hold,
    /// lvmd is to be asked.
    Call(DiskCall),
    /// lvmd moves the volumes.
    Follow(EvacuationStatus),
    /// It ends.
    End(End),
    /// It has ended, and the finalizer is to be removed.
    Release,
    /// It has ended.
    Rest,
}

/// Facts from which the next step is chosen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Situation<'a> {
    /// Unfinished operations that come before this one.
    pub(super) others: &'a [&'a DiskOperation],
    /// The finalizer of operations under way.
    pub(super) finalizer: &'a str,
    pub(super) reading: &'a Reading,
}

/// Chooses the next step of an operation.
pub(super) fn next_step(operation: &DiskOperation, situation: Situation<'_>) -> Step {
    let is_held = has_finalizer(&operation.metadata, situation.finalizer);
    if operation.phase().is_final() {
        return if is_held { Step::Release } else { Step::Rest };
    }
    // Without our finalizer it is gone as soon as those of others are, and nothing was begun
    if operation.is_deleting() && !is_held {
        return Step::Rest;
    }
    let reading = situation.reading;
    let Some(status) = reading.status.as_ref().filter(|_| reading.is_connected) else { return Step::Wait(SILENT) };
    match operation.disk_uuid() {
        None if operation.is_deleting() => canceled(),
        None => begin(operation, situation, status),
        Some(uuid) => go_on(operation, uuid, is_held, status),
    }
}

/// Chooses the first step: the disk is found, and is recorded if it has LVM's UUID.
fn begin(operation: &DiskOperation, situation: Situation<'_>, status: &NodeStorageStatus) -> Step {
    if let Err(error) = operation.bytes_per_second() {
        return failed("InvalidSpec", format!("maxBytesPerSecond: {error}"));
    }
    let Some(disk) = Disk::find(&operation.spec.disk, status) else {
        return match (situation.reading.knows_disks, status.knows_all_groups()) {
            (false, _) => Step::Wait(SILENT),
            (true, false) => Step::Wait(UNCERTAIN),
            (true, true) => failed("DiskNotFound", NOT_FOUND.to_owned()),
        };
    };
    if let Some(other) = find_conflict(disk, situation.others, status) {
        let message = format!(
            "DiskOperation {} ({}) of the same disk has not finished; wait for it, or delete it, which cancels it",
            other.name(),
            other.spec.type_.as_str()
        );
        return failed("Conflict", message);
    }
    match (operation.spec.type_, disk) {
        (DiskOperationType::Add, Disk::Free(disk)) => {
            Step::Call(DiskCall::Add(AddDiskRequest { path: disk.path.clone(), stable_name: disk.stable_name.clone() }))
        }
        (DiskOperationType::Add, Disk::Joined(disk)) => {
            succeeded(format!("the disk is in disk group {}", disk.disk_group))
        }
        (DiskOperationType::Add, Disk::Member(group, pv)) if pv.evacuation.is_none() => {
            succeeded(format!("the disk is in volume group {}", group.name))
        }
        (_, Disk::Member(group, pv)) => Step::Record(RecordedDisk {
            uuid: pv.uuid.clone(),
            volume_group: group.name.clone(),
            path: pv.path.clone(),
        }),
        (_, Disk::Joined(_)) => Step::Wait(UNCERTAIN),
        (_, Disk::Free(_)) => failed("DiskNotFound", IN_NO_GROUP.to_owned()),
    }
}

/// Chooses the next step with the recorded disk, whatever its name means by now.
fn go_on(operation: &DiskOperation, uuid: &str, is_held: bool, status: &NodeStorageStatus) -> Step {
    let Some((group, pv)) = status.physical_volume(uuid) else {
        return match operation.spec.type_ {
            _ if !status.knows_all_groups() => Step::Wait(UNCERTAIN),
            DiskOperationType::Remove => {
                succeeded(format!("{} is empty and has left the group; pull it out", describe(operation)))
            }
            DiskOperationType::Replace => {
                succeeded(format!("what {} had is on other disks, and the group has forgotten it", describe(operation)))
            }
            DiskOperationType::Evacuate if operation.is_deleting() => canceled(),
            DiskOperationType::Add | DiskOperationType::Evacuate => failed("DiskNotFound", LEFT.to_owned()),
        };
    };
    match operation.spec.type_ {
        _ if operation.is_deleting() => Step::Call(DiskCall::Stop(request(group, pv))),
        DiskOperationType::Add if pv.evacuation.is_none() => {
            succeeded(format!("{} gets new volumes again", describe(operation)))
        }
        DiskOperationType::Add => Step::Call(DiskCall::Stop(request(group, pv))),
        // lvmd answers when the group has forgotten the disk, and reports that in a moment
        DiskOperationType::Replace if operation.phase() == Phase::Running => Step::Wait("the mirrors are rebuilt"),
        DiskOperationType::Replace if pv.missing => Step::Call(DiskCall::Replace(request(group, pv))),
        DiskOperationType::Replace => failed("NotMissing", NOT_MISSING.to_owned()),
        DiskOperationType::Evacuate | DiskOperationType::Remove if !is_held => Step::Hold,
        DiskOperationType::Evacuate | DiskOperationType::Remove => evacuate(operation, group, pv),
    }
}

fn evacuate(operation: &DiskOperation, group: &VolumeGroupStatus, pv: &PhysicalVolumeStatus) -> Step {
    let remove = operation.spec.type_ == DiskOperationType::Remove;
    match pv.evacuation.as_ref().filter(|evacuation| evacuation.remove == remove) {
        Some(evacuation) if operation.phase() == Phase::Running => {
            if evacuation.is_empty() && !remove {
                succeeded(format!("{} is empty, and gets no new volumes until an Add operation", describe(operation)))
            } else {
                Step::Follow(evacuation.clone())
            }
        }
        // Not accepted yet, or lvmd has lost it
        Some(_) | None => Step::Call(DiskCall::Evacuate(EvacuateDiskRequest {
            volume_group: group.name.clone(),
            uuid: pv.uuid.clone(),
            bytes_per_second: operation.bytes_per_second().unwrap_or_default(),
            remove,
        })),
    }
}

fn succeeded(message: String) -> Step {
    Step::End(End::Succeeded(message))
}

const fn failed(reason: &'static str, message: String) -> Step {
    Step::End(End::Failed { reason, message })
}

fn canceled() -> Step {
    Step::End(End::Canceled(CANCELED.to_owned()))
}

fn request(group: &VolumeGroupStatus, pv: &PhysicalVolumeStatus) -> DiskRequest {
    DiskRequest { volume_group: group.name.clone(), uuid: pv.uuid.clone() }
}

#[cfg(test)]
mod tests;
