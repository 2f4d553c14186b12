//! The next step for a wish about a disk: a pure function of the annotation, what lvmd says of the storage, and what
//! has become of the wish so far.

use topolvm_api::{DiskWish, DiskWishStatus, NodeStorageStatus, PhysicalVolumeStatus, VolumeGroupStatus};
use topolvm_proto::lvmd::{AddDiskRequest, DiskRequest, EvacuateDiskRequest};

use super::super::lvmd_watch::Reading;

const SILENT: &str = "lvmd does not say what disks there are; it is asked as soon as it does";
const UNCERTAIN: &str = "no volume group has this disk, and LVM cannot be asked about all of them now";
const UNKNOWN: &str =
    "no volume group of the node has a disk of this UUID; kubectl topolvm disk list NODE shows those that there are";
const NOT_THERE: &str = "the node has no such disk; kubectl topolvm disk list NODE shows those that could be added";
const NOT_MISSING: &str = "the disk is there, and replace is for one that is missing; add another disk, then remove \
     this one: its volumes are moved";

/// A wish that stands in the annotations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wish<'a> {
    /// The disk of this name is to be added.
    Add(&'a str),
    /// Of the disk of this UUID, the value of the annotation.
    Of(&'a str, &'a str),
}

/// A call of lvmd.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum DiskCall {
    Add(AddDiskRequest),
    Evacuate(EvacuateDiskRequest),
    Stop(DiskRequest),
    Replace(DiskRequest),
}

/// The next step for a wish.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// Nothing can be said yet, for this reason.
    Wait(&'static str),
    /// It cannot be meant, for this reason.
    Refuse(String),
    /// lvmd is to be asked.
    Call(DiskCall),
    /// lvmd has it.
    Stand,
    /// It is fulfilled for good, or will not be tried again.
    TakeOff,
}

impl<'a> Wish<'a> {
    /// Returns the disk as it stands in the status.
    pub(super) const fn disk(self) -> &'a str {
        match self {
            Self::Add(disk) | Self::Of(disk, _) => disk,
        }
    }

    /// Returns the wish as it stands in the status.
    pub(super) const fn text(self) -> &'a str {
        match self {
            Self::Add(_) => "add",
            Self::Of(_, text) => text,
        }
    }

    /// Returns whether it asks for another disk.
    pub(super) const fn is_addition(self) -> bool {
        matches!(self, Self::Add(_))
    }

    /// Returns whether it is tried once: refused, it would be done later to another disk that has the name by then, or
    /// when a disk that is in use is away for a moment.
    pub(super) fn is_tried_once(self) -> bool {
        self.is_addition() || matches!(self.text().parse(), Ok(DiskWish::Replace))
    }

    /// Returns whether this is what stands in the status.
    pub(super) fn is_told(self, told: &DiskWishStatus) -> bool {
        told.disk == self.disk() && told.wish == self.text()
    }

    /// Chooses the next step. `known` is what has become of it so far, and `told` what the object says by now. The end
    /// of a wish is told before it is taken off: whoever waits for it sees that when it is off.
    pub(super) fn next_step(self, known: &DiskWishStatus, told: &NodeStorageStatus, reading: &Reading) -> Step {
        let Some(status) = reading.status.as_ref().filter(|_| reading.is_connected) else { return Step::Wait(SILENT) };
        let has_ended = known.is_refused() || (self.is_addition() && known.is_accepted());
        match self {
            _ if self.is_tried_once() && has_ended => {
                if told.disk_wishes.contains(known) {
                    Step::TakeOff
                } else {
                    Step::Stand
                }
            }
            Self::Add(_) if !reading.knows_disks => Step::Wait(SILENT),
            Self::Add(name) => add(name, status),
            Self::Of(uuid, text) => match text.parse::<DiskWish>() {
                Ok(wish) => {
                    let is_gone = status.physical_volume(uuid).is_none();
                    let is_told = told.physical_volume(uuid).is_none();
                    let step = change(uuid, wish, known, status);
                    if step == Step::TakeOff && is_gone && !is_told { Step::Stand } else { step }
                }
                Err(error) => Step::Refuse(error.to_string()),
            },
        }
    }
}

fn add(name: &str, status: &NodeStorageStatus) -> Step {
    match status.disks.iter().find(|disk| disk.is_named(name)) {
        None => Step::Refuse(NOT_THERE.to_owned()),
        Some(disk) if disk.is_member() => Step::TakeOff,
        Some(disk) => {
            Step::Call(DiskCall::Add(AddDiskRequest { path: disk.path.clone(), stable_name: disk.stable_name.clone() }))
        }
    }
}

fn change(uuid: &str, wish: DiskWish, known: &DiskWishStatus, status: &NodeStorageStatus) -> Step {
    let Some((group, pv)) = status.physical_volume(uuid) else {
        let leaves = matches!(wish, DiskWish::Remove { .. } | DiskWish::Replace);
        return match (status.knows_all_groups(), leaves && known.is_accepted()) {
            (true, true) => Step::TakeOff,
            (true, false) => Step::Refuse(UNKNOWN.to_owned()),
            (false, _) => Step::Wait(UNCERTAIN),
        };
    };
    match wish {
        DiskWish::Evacuate { bytes_per_second } => evacuate(group, pv, bytes_per_second, false, known),
        DiskWish::Remove { bytes_per_second } => evacuate(group, pv, bytes_per_second, true, known),
        DiskWish::Stop if pv.evacuation.is_none() => Step::TakeOff,
        DiskWish::Stop => Step::Call(DiskCall::Stop(request(group, pv))),
        DiskWish::Replace if pv.missing => Step::Call(DiskCall::Replace(request(group, pv))),
        DiskWish::Replace => Step::Refuse(NOT_MISSING.to_owned()),
    }
}

fn evacuate(
    group: &VolumeGroupStatus,
    pv: &PhysicalVolumeStatus,
    bytes_per_second: Option<u64>,
    remove: bool,
    known: &DiskWishStatus,
) -> Step {
    let is_on_record = pv.evacuation.as_ref().is_some_and(|evacuation| evacuation.remove == remove);
    if known.is_accepted() && is_on_record {
        return Step::Stand;
    }
    Step::Call(DiskCall::Evacuate(EvacuateDiskRequest {
        volume_group: group.name.clone(),
        uuid: pv.uuid.clone(),
        bytes_per_second: bytes_per_second.unwrap_or_default(),
        remove,
    }))
}

fn request(group: &VolumeGroupStatus, pv: &PhysicalVolumeStatus) -> DiskRequest {
    DiskRequest { volume_group: group.name.clone(), uuid: pv.uuid.clone() }
}

#[cfg(test)]
mod tests;
