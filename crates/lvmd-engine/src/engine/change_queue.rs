//! The queue of changes of one kind that wait for the lock of their volume group: the task that has the lock may carry
//! out those of others as well.

use std::collections::VecDeque;
use std::sync::Arc;

use lvm::LogicalVolume;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::change_lock::ChangeGuard;

/// Most changes that are carried out together with one's own: the first waits for the last, and more save little.
pub(super) const MOST_OTHERS: usize = 7;

/// The changes that wait for the lock of a volume group, the oldest first.
#[derive(Debug)]
pub(super) struct ChangeQueue<C> {
    waiting: Arc<Mutex<VecDeque<Waiting<C>>>>,
}

/// A change that another task may carry out.
#[derive(Debug)]
pub(super) struct Waiting<C> {
    pub(super) change: Arc<C>,
    /// Receives the volume. It is dropped if the change failed: the requesting task then carries it out alone, and gets
    /// the reason.
    pub(super) answer: oneshot::Sender<LogicalVolume>,
}

/// The place of a change in the queue. Dropping it takes the change out, unless another task carries it out by now.
#[derive(Debug)]
pub(super) struct QueuePlace<C> {
    pub(super) change: Arc<C>,
    queue: Arc<Mutex<VecDeque<Waiting<C>>>>,
    answer: Mutex<oneshot::Receiver<LogicalVolume>>,
}

impl<C> Default for ChangeQueue<C> {
    fn default() -> Self {
        Self { waiting: Arc::default() }
    }
}

impl<C> ChangeQueue<C> {
    /// Adds a change at the end.
    pub(super) fn push(&self, change: C) -> QueuePlace<C> {
        let (sender, answer) = oneshot::channel();
        let change = Arc::new(change);
        self.waiting.lock().push_back(Waiting { change: Arc::clone(&change), answer: sender });
        QueuePlace { change, queue: Arc::clone(&self.waiting), answer: Mutex::new(answer) }
    }

    /// Takes the changes out for which `plan` returns something, up to so many, and returns these plans with them.
    pub(super) fn take<T>(&self, most: usize, mut plan: impl FnMut(&C) -> Option<T>) -> Vec<(Waiting<C>, T)> {
        let mut waiting = self.waiting.lock();
        let mut taken = Vec::new();
        let mut index = 0;
        while taken.len() < most
            && let Some(next) = waiting.get(index)
        {
            match plan(&next.change) {
                Some(planned) => taken.extend(waiting.remove(index).map(|next| (next, planned))),
                None => index = index.saturating_add(1),
            }
        }
        taken
    }
}

impl<C> QueuePlace<C> {
    /// Takes the change out of the queue and returns the volume if another task has carried it out. While the group is
    /// locked no other task is about to.
    pub(super) fn leave(&self, _lock: &ChangeGuard) -> Option<LogicalVolume> {
        self.remove();
        self.answer.lock().try_recv().ok()
    }

    fn remove(&self) {
        self.queue.lock().retain(|waiting| !Arc::ptr_eq(&waiting.change, &self.change));
    }
}

impl<C> Drop for QueuePlace<C> {
    fn drop(&mut self) {
        self.remove();
    }
}
