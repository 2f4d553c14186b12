//! Takes entries of the storage report from the cache of a volume group.

use lvm::{PhysicalVolume, VolumeGroup};

use super::group::Group;
use crate::storage_report::{GroupEntry, GroupReport, PoolEntry};

/// Returns the entry of a volume group.
pub(super) fn group_entry(group: &Group) -> GroupEntry {
    let evacuation = |pv: &PhysicalVolume| group.evacuation.entry_of(pv);
    let volumes = |uuid: &str| group.evacuation.volumes_of(uuid);
    let report = |known: &VolumeGroup| GroupReport::of(known, |uuid| group.last_path(uuid), evacuation, volumes);
    let report = group.cached().map(|known| report(&known));
    GroupEntry { name: group.name.clone(), report, stale_reason: group.stale_reason() }
}

/// Returns the entries of its thin pools.
pub(super) fn pools(group: &VolumeGroup) -> Vec<PoolEntry> {
    PoolEntry::of_group(group).collect()
}
