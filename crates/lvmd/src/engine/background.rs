//! Starts the background tasks of a volume group: the one that detects external changes, and the one that wipes.

use std::collections::btree_map::Entry;
use std::sync::Arc;

use lvm::{Host, VolumeGroup};

use super::group::Group;
use super::state::Engine;
use super::{external_changes, storage_health, wiping};

impl<R: Host> Engine<R> {
    /// Puts a volume group that LVM has just reported into the cache and keeps it there, unless it is there already.
    pub(super) fn track_group(&self, reported: VolumeGroup) {
        let group = match self.inner.groups.write().entry(reported.name.clone()) {
            Entry::Occupied(_) => return,
            Entry::Vacant(entry) => {
                storage_health::log_missing_pvs(&reported.name, 0, reported.missing_pvs);
                Arc::clone(entry.insert(Arc::new(Group::new(reported.name.clone(), Some(reported)))))
            }
        };
        let shutdown = || self.inner.shutdown.clone();
        let watching = external_changes::watch_group(self.clone(), Arc::clone(&group), shutdown());
        self.inner.tasks.spawn("volume group", watching);
        self.inner.tasks.spawn("wiping", wiping::wipe_removed_volumes(self.clone(), group, shutdown()));
    }
}
