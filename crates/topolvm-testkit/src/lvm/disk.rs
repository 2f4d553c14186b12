//! Disks whose reads hang.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::FakeLvm;

/// UUIDs of the physical volumes whose disks hang.
#[derive(Default)]
pub(super) struct Hanging {
    disks: Mutex<BTreeSet<String>>,
    changed: Condvar,
}

impl Hanging {
    /// Waits until the disk does not hang.
    pub(super) fn pass(&self, uuid: &str) {
        let mut disks = self.disks();
        while disks.contains(uuid) {
            disks = self.changed.wait(disks).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn disks(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.disks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A disk that hangs until this is dropped.
#[must_use]
pub struct HangingDisk {
    lvm: FakeLvm,
    uuid: String,
}

impl HangingDisk {
    pub(super) fn new(lvm: FakeLvm, uuid: String) -> Self {
        lvm.shared.hanging.disks().insert(uuid.clone());
        Self { lvm, uuid }
    }
}

impl Drop for HangingDisk {
    fn drop(&mut self) {
        self.lvm.shared.hanging.disks().remove(&self.uuid);
        self.lvm.shared.hanging.changed.notify_all();
    }
}

impl std::fmt::Debug for HangingDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HangingDisk").field("uuid", &self.uuid).finish_non_exhaustive()
    }
}
