//! Evacuations of disks in the status of a `NodeStorage`.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{NodeStorageStatus, PhysicalVolumeStatus, VolumeGroupStatus};
use crate::schema;

/// Progress of the evacuation of a physical volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["state"]))]
pub struct EvacuationStatus {
    /// State of the evacuation: moving, blocked or empty.
    #[serde(default)]
    pub state: String,
    /// Reason why the evacuation is blocked, with the fix, or the current step.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Size of the data that is still to be moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub remaining: Option<Quantity>,
    /// True if the disk leaves its volume group when it is empty.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub remove: bool,
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
