//! The disks of a node and its disk groups in the status of a `NodeStorage`.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::NodeStorageStatus;
use crate::schema;

/// A disk of the machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["path", "state"]))]
pub struct DiskStatus {
    /// Path of the device.
    #[serde(default)]
    pub path: String,
    /// Path in /dev/disk/by-id, which a reboot does not change. Empty if the disk has none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stable_name: String,
    /// Size of the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub size: Option<Quantity>,
    /// Model of the disk.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// Serial number of the disk.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub serial: String,
    /// Transport of the disk: nvme, sata, usb and others.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub transport: String,
    /// Rotational disk (HDD). Unset if the driver does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotational: Option<bool>,
    /// Disk group that the disk is in, or the only one that selects it. Empty for none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub disk_group: String,
    /// Decision of lvmd: not-selected, member, member-has-grown, candidate or refused.
    #[serde(default)]
    pub state: String,
    /// Reasons why the disk is refused, one keyword each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    /// Decision of lvmd for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// A disk group and its volume group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["name", "mode"]))]
pub struct DiskGroupStatus {
    /// Name of the disk group and of its volume group.
    #[serde(default)]
    pub name: String,
    /// Mode of the disk group: report or auto.
    #[serde(default)]
    pub mode: String,
    /// True if the volume group exists.
    #[serde(default)]
    pub exists: bool,
    /// True if lvmd may extend the volume group, which has the tag of the disk group.
    #[serde(default)]
    pub owned: bool,
    /// Number of disks, including missing ones.
    #[serde(default)]
    pub disks: u64,
    /// Number of missing disks.
    #[serde(default, skip_serializing_if = "is_none_missing")]
    pub missing_disks: u64,
}

impl DiskStatus {
    /// Returns true if it is in the volume group of its disk group.
    pub fn is_member(&self) -> bool {
        matches!(self.state.as_str(), "member" | "member-has-grown")
    }

    /// Returns true if it is blank and could be added to its disk group.
    pub fn is_candidate(&self) -> bool {
        self.state == "candidate"
    }

    /// Returns true if this is its stable name, with or without the directory, or the path of one that has none: the
    /// path of a disk that has a name may be another's after the next boot.
    pub fn is_named(&self, name: &str) -> bool {
        self.key() == name || (!self.stable_name.is_empty() && self.short_name() == name)
    }

    /// Returns its stable name without the directory; empty if it has none.
    pub fn short_name(&self) -> &str {
        self.stable_name.rsplit('/').next().unwrap_or_default()
    }

    /// Returns its stable name, or else its path: the name that distinguishes it from others.
    pub fn key(&self) -> &str {
        if self.stable_name.is_empty() { &self.path } else { &self.stable_name }
    }
}

impl NodeStorageStatus {
    /// Copies disks and disk groups from another status.
    pub fn keep_disks_of(&mut self, before: &Self) {
        self.disks.clone_from(&before.disks);
        self.omitted_disks = before.omitted_disks;
        self.disk_groups.clone_from(&before.disk_groups);
    }

    /// Returns the disk group of this name.
    pub fn disk_group(&self, name: &str) -> Option<&DiskGroupStatus> {
        self.disk_groups.iter().find(|group| group.name == name)
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_none_missing(number: &u64) -> bool {
    *number == 0
}
