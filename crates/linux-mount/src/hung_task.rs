//! Hung tasks: threads and programs that wait for the kernel, which waits for a disk.

use std::any::Any;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// Guards that a hung task owns until its wait is over.
type Held = Mutex<Vec<Box<dyn Any + Send>>>;

/// A thread, or a program that cannot be killed, which waits for the kernel. The task itself owns a clone: locks that
/// it holds are released when the wait is over.
#[derive(Clone, Debug, Default)]
pub struct HungTask(pub(crate) Arc<Held>);

/// A weak reference to a hung task, which does not keep its locks.
pub(crate) type WeakHungTask = Weak<Held>;

impl HungTask {
    /// Holds the guard of a lock until the wait is over, so that no second thread hangs with the same volume.
    pub fn hold_lock(&self, guard: impl Any + Send) {
        self.0.lock().push(Box::new(guard));
    }

    /// Returns a weak reference.
    pub(crate) fn downgrade(&self) -> WeakHungTask {
        Arc::downgrade(&self.0)
    }
}
