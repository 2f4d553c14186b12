//! Disks that are emptied, and what has become of wishes about disks, as they stand in the status of a `NodeStorage`.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::{Deserialize, Serialize};

use super::{NodeStorageStatus, PhysicalVolumeStatus, VolumeGroupStatus};

/// The progress of the evacuation of a physical volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EvacuationStatus {
    /// `moving`, `blocked` or `empty`.
    #[serde(default)]
    pub state: String,
    /// The reason for which it is blocked, with the remedy, or what is done.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Size of what is still to be moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining: Option<Quantity>,
    /// True if it leaves its volume group when it is empty.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub remove: bool,
}

/// The state of the wish of an administrator about a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiskWishStatus {
    /// LVM's UUID of the disk; of one that is to be added the name in the annotation.
    #[serde(default)]
    pub disk: String,
    /// `add`, or the value of the annotation.
    #[serde(default)]
    pub wish: String,
    /// `accepted` by lvmd, `refused`, or `waiting` for an answer.
    #[serde(default)]
    pub state: String,
    /// The state for people: why it is refused, with the remedy.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

impl EvacuationStatus {
    /// Returns true while it cannot go on.
    pub fn is_blocked(&self) -> bool {
        self.state == "blocked"
    }

    /// Returns true if nothing is left on the disk.
    pub fn is_empty(&self) -> bool {
        self.state == "empty"
    }
}

impl DiskWishStatus {
    /// Returns true if lvmd has taken the wish.
    pub fn is_accepted(&self) -> bool {
        self.state == "accepted"
    }

    /// Returns true if it was refused.
    pub fn is_refused(&self) -> bool {
        self.state == "refused"
    }
}

impl NodeStorageStatus {
    /// Iterates over all physical volumes with their volume groups.
    pub fn physical_volumes(&self) -> impl Iterator<Item = (&VolumeGroupStatus, &PhysicalVolumeStatus)> {
        self.volume_groups.iter().flat_map(|group| group.physical_volumes.iter().map(move |pv| (group, pv)))
    }

    /// Finds the physical volume of this UUID, and its volume group.
    pub fn physical_volume(&self, uuid: &str) -> Option<(&VolumeGroupStatus, &PhysicalVolumeStatus)> {
        self.physical_volumes().find(|(_, pv)| pv.uuid == uuid)
    }

    /// Returns true if LVM was asked about all volume groups just now, and found them: then a physical volume that is
    /// in none of them has left.
    pub fn knows_all_groups(&self) -> bool {
        self.volume_groups.iter().all(|group| !group.uuid.is_empty() && group.stale_reason.is_empty())
    }
}
