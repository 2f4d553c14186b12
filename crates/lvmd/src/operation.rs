//! How many LVM processes a request costs, for its line in the log.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

tokio::task_local! {
    // A change runs in a task of its own, under a lock, through a runner that all changes share: what belongs to whom is known by
    // the task alone
    static PROCESSES: Arc<AtomicU32>;
}

/// What came of some work, and how many LVM processes were started for it.
pub(crate) async fn counted<T>(work: impl Future<Output = T>) -> (T, u32) {
    let processes = Arc::<AtomicU32>::default();
    let result = PROCESSES.scope(Arc::clone(&processes), work).await;
    (result, processes.load(Ordering::Relaxed))
}

/// Work that goes on in another task and counts for whoever begins it.
pub(crate) async fn carried<T>(processes: Option<Arc<AtomicU32>>, work: impl Future<Output = T>) -> T {
    match processes {
        Some(processes) => PROCESSES.scope(processes, work).await,
        None => work.await,
    }
}

/// Who is to count the work that another task is going to do; nobody, if nobody counts.
pub(crate) fn counter() -> Option<Arc<AtomicU32>> {
    PROCESSES.try_with(Arc::clone).ok()
}

/// So many LVM processes were started.
pub(crate) fn count_processes(number: u32) {
    // Nobody counts what lvmd does of its own accord
    let _counted = PROCESSES.try_with(|processes| processes.fetch_add(number, Ordering::Relaxed));
}
