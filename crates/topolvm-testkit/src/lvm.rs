//! A fake LVM behind [`lvm::CommandRunner`]: it keeps volume groups in memory, follows LVM's rules, and answers with
//! LVM's own reports, messages and exit statuses.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a test that uses the fake wrongly is to fail at once"
)]

mod change;
mod command_runner;
mod create;
mod devices;
mod disk;
mod fault;
mod group_disks;
mod injection;
mod machine;
mod report;
pub mod scenario;
mod state;
mod wipe;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use disk::HangingDisk;
pub use fault::{Fault, Pause};
pub use machine::FakeDisk;
pub use state::{EXTENT, FakeVolume};
pub use wipe::{Held, Stop};

use fault::Plan;
use state::{Group, State};

/// A fake LVM. Clones share the same volume groups.
#[derive(Clone, Default)]
pub struct FakeLvm {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    plan: Mutex<Plan>,
    stop: wipe::Gate,
    hanging: disk::Hanging,
}

impl FakeLvm {
    /// Makes a fake LVM without volume groups.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a volume group of `bytes` (rounded down to extents of 4 MiB) on one physical volume.
    #[must_use]
    pub fn with_group(self, vg: &str, bytes: u64) -> Self {
        self.add_group(vg, bytes, 1);
        self
    }

    /// Adds a volume group of `bytes` on `pvs` physical volumes.
    pub fn add_group(&self, vg: &str, bytes: u64, pvs: u32) {
        self.state().groups.insert(vg.to_owned(), Group::new(vg, bytes, pvs));
    }

    /// Removes a volume group, as when its disk is pulled.
    pub fn remove_group(&self, vg: &str) {
        self.state().groups.remove(vg);
    }

    /// Takes the disks of a volume group away, with what is on them.
    ///
    /// # Panics
    /// When there is no such group.
    pub fn unplug_group(&self, vg: &str) {
        let mut state = self.state();
        let group = state.groups.remove(vg).expect("no such volume group");
        state.unplugged.insert(vg.to_owned(), group);
    }

    /// Brings the disks of a volume group back.
    pub fn plug_group(&self, vg: &str) {
        let mut state = self.state();
        if let Some(group) = state.unplugged.remove(vg) {
            state.groups.insert(vg.to_owned(), group);
        }
    }

    /// Renames a volume group, as `vgrename` does; its disks stay the same.
    pub fn rename_group(&self, vg: &str, to: &str) {
        let mut state = self.state();
        if let Some(mut group) = state.groups.remove(vg) {
            group.seqno += 1;
            state.groups.insert(to.to_owned(), group);
        }
    }

    /// Extends a volume group by `bytes`, as `vgextend` does.
    pub fn extend_group(&self, vg: &str, bytes: u64) {
        self.change_group(vg, |group| group.extents += bytes / EXTENT);
    }

    /// Sets the number of physical volumes of the group that are missing.
    pub fn set_missing_pvs(&self, vg: &str, missing: u32) {
        self.change_group(vg, |group| group.missing_pvs = missing);
    }

    /// Sets the number of volumes that the group may have, as `vgchange -l` does; 0 for any number.
    pub fn set_max_volumes(&self, vg: &str, most: usize) {
        self.change_group(vg, |group| group.max_volumes = most);
    }

    /// Puts the physical volumes of a group on this volume, given by its name in device-mapper, as a tenant does who
    /// runs `vgcreate` in a virtual machine.
    pub fn write_to_volume(&self, vg: &str, mapper_name: &str) {
        self.change_group(vg, |group| group.below = Some(mapper_name.to_owned()));
    }

    /// Gives the machine a system ID (lvmsystemid(7)); the groups keep theirs.
    pub fn set_system_id(&self, system_id: &str) {
        system_id.clone_into(&mut self.state().system_id);
    }

    /// Gives a group a system ID, as `vgchange --systemid` does.
    pub fn set_group_system_id(&self, vg: &str, system_id: &str) {
        self.change_group(vg, |group| system_id.clone_into(&mut group.system_id));
    }

    /// Exports a group, as `vgexport` does, or imports it.
    pub fn set_exported(&self, vg: &str, exported: bool) {
        self.change_group(vg, |group| group.is_exported = exported);
    }

    /// Hides the metadata on the group's physical volumes from readers without LVM, or shows it again.
    pub fn hide_metadata(&self, vg: &str, hide: bool) {
        self.change_group(vg, |group| group.is_unreadable = hide);
    }

    /// Makes device-mapper unavailable, as in a container without it: then LVM is asked for each list of volumes, and
    /// external changes are seen at once.
    pub fn hide_devices(&self) {
        self.state().devices_are_hidden = true;
    }

    /// Sets lvm.conf(5) `activation/thin_pool_autoextend_threshold`: thin pools take no volumes above so many percent.
    pub fn set_thin_pool_threshold(&self, percent: u8) {
        self.state().thin_pool_threshold = Some(percent);
    }

    /// Makes reads of this physical volume of a group hang until the returned value is dropped.
    pub fn hang_disk(&self, vg: &str, index: u32) -> HangingDisk {
        let uuid = format!("{}-{index}", self.state().group(vg).uuid);
        HangingDisk::new(self.clone(), uuid)
    }

    /// Makes device-mapper available again, after [`Self::hide_devices`].
    pub fn show_devices(&self) {
        self.state().devices_are_hidden = false;
    }

    /// Adds a volume to a group: an external change for the program under test.
    pub fn add_volume(&self, vg: &str, name: &str, volume: FakeVolume) {
        self.state().add_volume(vg, name, volume);
    }

    /// Removes a volume from a group: an external change for the program under test.
    pub fn remove_volume(&self, vg: &str, name: &str) {
        self.change_group(vg, |group| group.remove(name));
    }

    /// Changes a volume in place: opens it, deactivates it, breaks it.
    ///
    /// # Panics
    /// When there is no such volume.
    pub fn edit_volume(&self, vg: &str, name: &str, edit: impl FnOnce(&mut FakeVolume)) {
        let mut state = self.state();
        let group = state.group(vg);
        edit(group.volumes.get_mut(name).expect("no such volume in the fake LVM"));
    }

    /// Returns a copy of a volume.
    pub fn volume(&self, vg: &str, name: &str) -> Option<FakeVolume> {
        self.state().groups.get(vg)?.volumes.get(name).cloned()
    }

    /// Returns the names of the volumes that were removed from a group before they were wiped, in order of removal.
    pub fn removed_unwiped(&self, vg: &str) -> Vec<String> {
        self.state().group(vg).removed_unwiped.clone()
    }

    /// Stops wiping before this byte of any device, until the returned value is dropped.
    pub fn stop_wiping_at(&self, byte: u64) -> Stop {
        Stop::new(self.clone(), byte)
    }

    /// Returns the names of the volumes in a group, sorted.
    pub fn volumes(&self, vg: &str) -> Vec<String> {
        self.state().groups.get(vg).map(|group| group.volumes.keys().cloned().collect()).unwrap_or_default()
    }

    /// Returns the free bytes of a group.
    pub fn free(&self, vg: &str) -> u64 {
        self.state().group(vg).free_extents() * EXTENT
    }

    fn change_group<T>(&self, vg: &str, change: impl FnOnce(&mut Group) -> T) -> T {
        let mut state = self.state();
        let group = state.group(vg);
        group.seqno += 1;
        change(group)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.shared.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for FakeLvm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeLvm").finish_non_exhaustive()
    }
}
