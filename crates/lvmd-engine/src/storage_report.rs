//! The report on the storage of the machine: volume groups with their physical volumes, device classes, thin pools,
//! disks, and what is wrong with them.

use std::sync::Arc;

use lvm::{Device, LogicalVolume, PhysicalVolume, Problem, VgName, VolumeGroup};
use lvmd_config::{ClassCapacity, DeviceClass, DiskReport};

/// The report at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StorageReport {
    /// The volume groups of device classes, and those with volumes that lvmd made.
    pub groups: Vec<GroupEntry>,
    /// The device classes, in the order of the configuration.
    pub classes: Vec<ClassEntry>,
    /// The thin pools of the volume groups.
    pub pools: Vec<PoolEntry>,
    /// The problems, one sentence each.
    pub problems: Vec<String>,
    /// The report of the last scan of the disks; `None` before the first.
    pub disks: Option<Arc<DiskReport>>,
}

/// A volume group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupEntry {
    /// Its name.
    pub name: VgName,
    /// The last report of LVM on it; `None` if LVM does not find it.
    pub report: Option<GroupReport>,
    /// The failure of LVM since then.
    pub stale_reason: Option<String>,
}

/// A report on a volume group. Sizes are bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupReport {
    /// LVM's identity of it.
    pub uuid: String,
    /// Its size.
    pub size: u64,
    /// Bytes that no logical volume uses.
    pub free: u64,
    /// One extent.
    pub extent_size: u64,
    /// Its physical volumes in the order of its metadata.
    pub pvs: Vec<PhysicalVolumeEntry>,
    /// Number of its logical volumes, without hidden ones.
    pub volumes: u64,
    /// Number of copy-on-write snapshots among them.
    pub snapshots: u64,
}

/// A physical volume. Sizes are bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PhysicalVolumeEntry {
    /// Path of its device, or the last one of a missing device; `None` if that is not known.
    pub path: Option<String>,
    /// LVM's identity of it.
    pub uuid: String,
    /// Its device; `None` while it is missing.
    pub device: Option<Device>,
    /// Its size.
    pub size: u64,
    /// Bytes that no logical volume uses.
    pub free: u64,
    /// True if LVM takes extents from it.
    pub allocatable: bool,
    /// Its evacuation, if it is to be emptied.
    pub evacuation: Option<EvacuationEntry>,
    /// The volumes on it, while it is missing or is to be emptied.
    pub volumes: DiskVolumes,
}

/// The volumes of which a part is on a physical volume, those in danger first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskVolumes {
    /// The first of them.
    pub volumes: Vec<DiskVolume>,
    /// Number of further ones.
    pub omitted: u32,
}

/// A volume, or a thin pool, of which a part is on a physical volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskVolume {
    /// Its name.
    pub name: String,
    /// State of it on the disk.
    pub state: VolumeState,
}

/// State of a volume on one of its disks. The worst comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VolumeState {
    /// The disk is missing, and nothing else has what was on it.
    Lost,
    /// The disk is present, and a part of the volume could not be read or copied.
    Failing,
    /// The disk is missing, and the volume works with its other images.
    Degraded,
    /// The disk is present.
    Whole,
}

impl VolumeState {
    /// Returns the state as a keyword, which never changes.
    pub fn keyword(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Failing => "failing",
            Self::Degraded => "degraded",
            Self::Whole => "whole",
        }
    }
}

/// The evacuation of a physical volume: what lies on it is moved to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvacuationEntry {
    /// The state.
    pub state: EvacuationState,
    /// A sentence on what is done, or on why nothing can be done, with the remedy.
    pub message: String,
    /// Bytes of volumes that are still on it.
    pub remaining: u64,
    /// True if it leaves its volume group when it is empty.
    pub remove: bool,
}

/// The state of an evacuation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvacuationState {
    /// Volumes are being moved.
    Moving,
    /// Something is in the way.
    Blocked,
    /// Nothing is on the disk any more.
    Empty,
}

impl EvacuationState {
    /// Returns the state as a keyword, which never changes.
    pub fn keyword(self) -> &'static str {
        match self {
            Self::Moving => "moving",
            Self::Blocked => "blocked",
            Self::Empty => "empty",
        }
    }
}

impl EvacuationEntry {
    /// Returns whether something is in the way.
    pub fn is_blocked(&self) -> bool {
        self.state == EvacuationState::Blocked
    }
}

/// A device class. Sizes are bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassEntry {
    /// Its name.
    pub name: String,
    /// True if it is the default class.
    pub default: bool,
    /// The volume group of its volumes.
    pub volume_group: VgName,
    /// The thin pool of a thin class.
    pub thin_pool: Option<String>,
    /// The size of the thin pool or else of the volume group.
    pub size: u64,
    /// Bytes that new volumes can have.
    pub free: u64,
    /// The reason why LVM creates no volumes in it, whatever is free.
    pub refusal: Option<String>,
}

/// A thin pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolEntry {
    /// Its volume group.
    pub volume_group: VgName,
    /// Its name.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// The fill of its data in whole percent; `None` while it is not active.
    pub data_percent: Option<u8>,
    /// The fill of its metadata in whole percent; `None` while it is not active.
    pub metadata_percent: Option<u8>,
    /// The problem that its `lv_attr` shows.
    pub problem: Option<Problem>,
}

impl GroupReport {
    /// Makes the entry of a report. `last_path` returns the path that a missing physical volume had, `evacuation` the
    /// progress of that of a physical volume, `volumes` those on it.
    pub(crate) fn of(
        group: &VolumeGroup,
        last_path: impl Fn(&str) -> Option<String>,
        evacuation: impl Fn(&PhysicalVolume) -> Option<EvacuationEntry>,
        volumes: impl Fn(&str) -> DiskVolumes,
    ) -> Self {
        let pvs = group.pvs.iter().map(|pv| PhysicalVolumeEntry {
            path: if pv.device.is_some() { Some(pv.path.clone()) } else { last_path(&pv.uuid) },
            uuid: pv.uuid.clone(),
            device: pv.device,
            size: pv.size,
            free: pv.free,
            allocatable: pv.allocatable,
            evacuation: evacuation(pv),
            volumes: volumes(&pv.uuid),
        });
        let count = |is_counted: fn(&LogicalVolume) -> bool| {
            group.volumes.iter().filter(|volume| is_counted(volume)).fold(0, |count: u64, _| count.saturating_add(1))
        };
        Self {
            uuid: group.uuid.clone(),
            size: group.size,
            free: group.free,
            extent_size: group.extent_size,
            pvs: pvs.collect(),
            volumes: count(|_| true),
            // A small s is a snapshot, a capital one a snapshot that is being merged
            snapshots: count(|volume| volume.attr.as_str().starts_with(['s', 'S'])),
        }
    }
}

impl ClassEntry {
    pub(crate) fn of(class: &DeviceClass, capacity: &ClassCapacity) -> Self {
        Self {
            name: class.name.clone(),
            default: class.default,
            volume_group: class.volume_group.clone(),
            thin_pool: class.thin_pool.as_ref().map(|pool| pool.name.to_string()),
            size: capacity.thin.as_ref().map_or(capacity.size, |pool| pool.size),
            free: capacity.free_bytes,
            refusal: capacity.refusal.clone(),
        }
    }
}

impl PoolEntry {
    /// Makes the entries of the thin pools of a volume group.
    pub(crate) fn of_group(group: &VolumeGroup) -> impl Iterator<Item = Self> {
        group.volumes.iter().filter(|volume| volume.attr.is_thin_pool()).map(|pool| Self::of(group, pool))
    }

    fn of(group: &VolumeGroup, pool: &LogicalVolume) -> Self {
        Self {
            volume_group: group.name.clone(),
            name: pool.name.to_string(),
            size: pool.size,
            data_percent: pool.data_percent.map(whole_percent),
            metadata_percent: pool.metadata_percent.map(whole_percent),
            problem: pool.attr.problem(),
        }
    }
}

/// Rounds down, so that only a full pool is at 100. LVM itself reports 99.99 for one that is nearly full.
#[expect(clippy::as_conversions, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within 0 and 100")]
fn whole_percent(percent: f64) -> u8 {
    percent.clamp(0.0, 100.0) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_full_pool_is_at_100_percent() {
        assert_eq!(
            [0.0, 0.99, 1.0, 99.99, 100.0, f64::NAN, -1.0, 1e9].map(whole_percent),
            [0, 0, 1, 99, 100, 0, 0, 100]
        );
    }
}
