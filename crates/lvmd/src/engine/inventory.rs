//! Takes the inventory from the cache of the volume groups.

use std::sync::Arc;

use lvm::{Host, PhysicalVolume, VolumeGroup};

use super::group::Group;
use super::state::Engine;
use super::storage_health;
use crate::disk_report::DiskReport;
use crate::inventory::{ClassEntry, GroupEntry, GroupReport, Inventory, PoolEntry};

impl<R: Host> Engine<R> {
    /// Returns the inventory. An optional class without its volume group is left out, and so is the group.
    pub fn inventory(&self) -> Inventory {
        let (groups, classes) = (self.groups(), self.classes());
        // What was published last is at least as new as these groups, or the next publication follows.
        let capacity = self.inner.capacity.borrow().clone();
        let is_listed = |group: &&Arc<Group>| {
            classes.requires(&group.name) || (group.cached().is_some() && self.has_volumes(group))
        };
        let listed: Vec<_> = groups.values().filter(is_listed).collect();
        let class_entries = capacity.classes.iter().filter_map(|class| {
            let configured = classes.get(&class.name)?;
            Some(ClassEntry::of(configured, class))
        });
        Inventory {
            groups: listed.iter().map(|group| group_entry(group)).collect(),
            classes: class_entries.collect(),
            pools: listed.iter().filter_map(|group| group.cached()).flat_map(|group| pools(&group)).collect(),
            problems: storage_health::find_all_problems(&groups, &classes),
            disks: self.inner.disks.read().clone(),
        }
    }

    /// Stores the report of a look at the disks, and publishes it with the inventory.
    pub(crate) fn publish_disks(&self, report: Arc<DiskReport>) {
        *self.inner.disks.write() = Some(report);
        self.publish();
    }
}

fn group_entry(group: &Group) -> GroupEntry {
    let evacuation = |pv: &PhysicalVolume| group.evacuation.entry_of(pv);
    let volumes = |uuid: &str| group.evacuation.volumes_of(uuid);
    let report = |known: &VolumeGroup| GroupReport::of(known, |uuid| group.last_path(uuid), evacuation, volumes);
    let report = group.cached().map(|known| report(&known));
    GroupEntry { name: group.name.clone(), report, stale_reason: group.stale_reason() }
}

fn pools(group: &VolumeGroup) -> Vec<PoolEntry> {
    PoolEntry::of_group(group).collect()
}
