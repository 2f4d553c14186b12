//! Counts the LVM processes that a request starts, for the field `lvm_processes` of its log line.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

tokio::task_local! {
    // A change runs in a separate task, under a lock, through a runner that all changes share: only the task knows the
    // request.
    static PROCESSES: Arc<AtomicU32>;
}

/// Runs some work, and returns its result with the number of LVM processes that it started.
pub async fn count<T>(work: impl Future<Output = T>) -> (T, u32) {
    let processes = Arc::<AtomicU32>::default();
    let result = PROCESSES.scope(Arc::clone(&processes), work).await;
    (result, processes.load(Ordering::Relaxed))
}

/// Returns work for another task that counts its LVM processes with the counter of the present request, if there is
/// one.
pub(crate) fn count_for_request<T>(work: impl Future<Output = T>) -> impl Future<Output = T> {
    let processes = PROCESSES.try_with(Arc::clone).ok();
    async move {
        match processes {
            Some(processes) => PROCESSES.scope(processes, work).await,
            None => work.await,
        }
    }
}

/// Adds LVM processes to the counter of the present request.
pub fn add(number: u32) {
    // Background work has no counter.
    let _counted = PROCESSES.try_with(|processes| processes.fetch_add(number, Ordering::Relaxed));
}
