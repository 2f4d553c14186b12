//! Tracks volume groups: keeps each in the cache from its first report on, with its background tasks.

use std::collections::btree_map::Entry;
use std::sync::Arc;

use lvm::{Host, VgName, VolumeGroup};

use super::evacuation::Evacuation;
use super::external_changes::ChangeDetection;
use super::group::Group;
use super::state::Shared;
use super::storage_health;
use super::wiping::Wiping;

/// Adds a volume group that LVM has just reported to the cache and keeps it there, unless the cache already has it.
pub(super) fn track_group<R: Host>(shared: &Arc<Shared<R>>, reported: VolumeGroup) {
    track(shared, reported.name.clone(), Some(reported));
}

/// Does the same for a group that the machine may lack, and returns what is in the cache.
pub(super) fn track<R: Host>(shared: &Arc<Shared<R>>, vg: VgName, reported: Option<VolumeGroup>) -> Arc<Group> {
    let group = match shared.groups.write().entry(vg.clone()) {
        Entry::Occupied(entry) => return Arc::clone(entry.get()),
        Entry::Vacant(entry) => {
            shared.reader().serve(&vg, reported.as_ref());
            let missing_pvs = reported.as_ref().map_or(0, |group| group.missing_pvs);
            storage_health::log_missing_pvs(&vg, 0, missing_pvs);
            Arc::clone(entry.insert(Arc::new(Group::new(vg, reported))))
        }
    };
    let handle = || shared.handle(Arc::clone(&group));
    shared.tasks.spawn("volume group", ChangeDetection::new(handle()).run());
    shared.tasks.spawn("evacuation", Evacuation::new(handle()).run());
    shared.tasks.spawn("wiping", Wiping::new(handle()).run());
    group
}
