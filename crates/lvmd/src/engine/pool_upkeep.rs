//! The upkeep of the thin pools of one volume group: what was done, what failed, and when it is tried again.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use topolvm_runtime::Backoff;

/// Back-off after LVM failed to make or extend a pool.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(30), Duration::from_mins(10));

/// The upkeep of the thin pools of one volume group, by device class.
#[derive(Debug, Default)]
pub(super) struct PoolUpkeep {
    entries: Mutex<BTreeMap<String, Entry>>,
}

#[derive(Debug)]
struct Entry {
    backoff: Backoff,
    /// Time before which nothing is tried, after a failure.
    retry_at: Option<Instant>,
    /// The failure since the last success.
    failure: Option<String>,
    /// The reason why something is not done.
    obstacle: Option<String>,
}

impl Default for Entry {
    fn default() -> Self {
        Self { backoff: BACKOFF, retry_at: None, failure: None, obstacle: None }
    }
}

impl PoolUpkeep {
    /// Stores why something is not done for the pool of a class. Returns whether that is new.
    pub(super) fn set_obstacle(&self, class: &str, obstacle: Option<&str>) -> bool {
        self.edit(class, |entry| {
            let differs = entry.obstacle.as_deref() != obstacle;
            entry.obstacle = obstacle.map(str::to_owned);
            differs
        })
    }

    /// Stores that there is nothing to do, so that a failure has no meaning any more. Returns whether there was one.
    pub(super) fn forget_failure(&self, class: &str) -> bool {
        self.edit(class, |entry| entry.failure.take().is_some())
    }

    /// Returns whether a step may be tried now.
    pub(super) fn is_due(&self, class: &str) -> bool {
        self.edit(class, |entry| entry.retry_at.is_none_or(|when| Instant::now() >= when))
    }

    /// Stores that a step was taken.
    pub(super) fn note_success(&self, class: &str) {
        self.edit(class, |entry| {
            entry.backoff.reset();
            (entry.retry_at, entry.failure) = (None, None);
        });
    }

    /// Stores why a step failed. The next is tried later.
    pub(super) fn note_failure(&self, class: &str, failure: String) {
        self.edit(class, |entry| {
            entry.retry_at = Some(Instant::now() + entry.backoff.fail());
            entry.failure = Some(failure);
        });
    }

    /// Forgets the classes that have no pool to keep up any more.
    pub(super) fn retain(&self, has_upkeep: impl Fn(&str) -> bool) {
        self.entries.lock().retain(|class, _| has_upkeep(class));
    }

    /// Returns what fails and what is not done, one sentence each.
    pub(super) fn problems(&self) -> Vec<String> {
        let entries = self.entries.lock();
        entries.values().flat_map(|entry| [&entry.failure, &entry.obstacle]).flatten().cloned().collect()
    }

    fn edit<T>(&self, class: &str, edit: impl FnOnce(&mut Entry) -> T) -> T {
        let mut entries = self.entries.lock();
        if let Some(entry) = entries.get_mut(class) {
            return edit(entry);
        }
        edit(entries.entry(class.to_owned()).or_default())
    }
}
