//! The lock under which extents of a volume group are moved, with the commands of LVM that a move needs.

use std::ops::Deref;
use std::sync::Arc;

use lvm::{Error, Host, PhysicalVolume, Tag};

use super::Shared;
use crate::engine::evacuation_progress::MoveGuard;
use crate::engine::group::Group;
use crate::engine::interrupted_moves;

/// A volume group in which nothing but the holder of this lock moves extents. Volumes that it does not move are changed
/// meanwhile, under the other lock of the group.
#[derive(Debug)]
pub(in crate::engine) struct MoveLock<R> {
    shared: Arc<Shared<R>>,
    group: Arc<Group>,
    guard: MoveGuard,
}

impl<R: Host> MoveLock<R> {
    pub(super) fn new(shared: Arc<Shared<R>>, group: Arc<Group>, guard: MoveGuard) -> Self {
        Self { shared, group, guard }
    }

    pub(in crate::engine) fn shared(&self) -> &Shared<R> {
        &self.shared
    }

    /// Stores that a piece of this volume, which is no hidden one, is moved from a disk.
    pub(in crate::engine) fn set_moving(&self, volume: &str, disk: &str) {
        self.guard.set_moving(volume, disk);
    }

    /// Moves extents of a physical volume; see [`lvm::Lvm::move_extents`].
    pub(in crate::engine) async fn move_extents(
        &self,
        from: &str,
        extents: (u64, u64),
        to: Option<&str>,
    ) -> Result<(), Error> {
        self.shared.lvm.move_extents(&self.group.name, from, extents, to).await
    }

    /// Ends the move of extents of a physical volume; see [`lvm::Lvm::abort_move`].
    pub(in crate::engine) async fn abort_move(&self, from: &str) -> Result<(), Error> {
        self.shared.lvm.abort_move(&self.group.name, from).await
    }

    /// Keeps LVM from taking extents of a physical volume, and changes its tags. A move that fails waits for no other
    /// lock: with the end of the move the kernel forgets that a disk has failed.
    pub(in crate::engine) async fn forbid_allocation(
        &self,
        pv: &PhysicalVolume,
        add: &[Tag],
        remove: &[Tag],
    ) -> Result<(), Error> {
        self.shared.lvm.change_pv(&self.group.name, &pv.path, false, add, remove).await
    }

    /// Resumes the devices that a killed pvmove has left suspended.
    pub(in crate::engine) async fn resume_interrupted_moves(&self) {
        interrupted_moves::resume(&self.shared.lvm, &self.group).await;
    }

    /// Removes what a killed pvmove has left in LVM's metadata.
    pub(in crate::engine) async fn clear_up_interrupted_moves(&self) {
        interrupted_moves::clear_up(&self.shared.lvm, &self.group).await;
    }
}

impl<R> Deref for MoveLock<R> {
    type Target = Group;

    fn deref(&self) -> &Group {
        &self.group
    }
}
