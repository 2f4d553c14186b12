//! The lock under which a volume group is changed.

use std::sync::Arc;

use tokio::sync::{Mutex, OwnedMutexGuard};

/// The lock of one volume group, held from the check of the free space to the end of the change.
#[derive(Debug, Default)]
pub(super) struct ChangeLock {
    mutex: Arc<Mutex<()>>,
}

/// The held lock of a volume group. Dropping it releases the lock.
#[derive(Debug)]
pub(super) struct ChangeGuard {
    _guard: OwnedMutexGuard<()>,
}

impl ChangeLock {
    /// Waits for the lock.
    pub(super) async fn lock(&self) -> ChangeGuard {
        ChangeGuard { _guard: Arc::clone(&self.mutex).lock_owned().await }
    }

    /// Takes the lock, unless another task holds it.
    pub(super) fn try_lock(&self) -> Option<ChangeGuard> {
        Some(ChangeGuard { _guard: Arc::clone(&self.mutex).try_lock_owned().ok()? })
    }
}
