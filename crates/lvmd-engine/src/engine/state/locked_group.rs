//! A locked volume group: the only way to LVM's commands that change something.

use std::ops::Deref;
use std::sync::Arc;

use lvm::{Host, Lvm};

use super::Shared;
use crate::engine::change_lock::ChangeGuard;
use crate::engine::group::Group;

/// A volume group whose lock is held. Changes of the group run one after the other, and the free space that a change
/// has found stays free until its end.
///
/// It gives access to neither lock: the lock of moves is taken before this one, or not at all.
#[derive(Debug)]
pub(in crate::engine) struct LockedGroup<R> {
    shared: Arc<Shared<R>>,
    group: Arc<Group>,
    guard: ChangeGuard,
}

impl<R: Host> LockedGroup<R> {
    pub(super) fn new(shared: Arc<Shared<R>>, group: Arc<Group>, guard: ChangeGuard) -> Self {
        Self { shared, group, guard }
    }

    /// Returns the whole LVM.
    pub(in crate::engine) fn lvm(&self) -> &Lvm<R> {
        &self.shared.lvm
    }

    pub(in crate::engine) fn shared(&self) -> &Shared<R> {
        &self.shared
    }

    pub(in crate::engine) fn guard(&self) -> &ChangeGuard {
        &self.guard
    }
}

impl<R> Deref for LockedGroup<R> {
    type Target = Group;

    fn deref(&self) -> &Group {
        &self.group
    }
}
