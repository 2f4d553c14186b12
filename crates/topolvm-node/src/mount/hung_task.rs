//! Hung tasks: threads and programs that wait for the kernel, which waits for a disk.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use topolvm_runtime::Turn;

/// A thread, or a program that cannot be killed, which waits for the kernel. The task itself owns a clone: locks that
/// it holds are released when the wait is over.
#[derive(Clone, Debug, Default)]
pub struct HungTask(pub(super) Arc<Mutex<Vec<Turn>>>);

/// A weak reference to a hung task, which does not keep its locks.
pub(super) type WeakHungTask = Weak<Mutex<Vec<Turn>>>;

impl HungTask {
    /// Holds a lock until the wait is over, so that no second thread hangs with the same volume.
    pub(crate) fn hold_lock(&self, lock: Turn) {
        self.0.lock().push(lock);
    }

    /// Returns a weak reference.
    pub(super) fn downgrade(&self) -> WeakHungTask {
        Arc::downgrade(&self.0)
    }
}
