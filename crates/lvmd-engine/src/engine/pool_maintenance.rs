//! The maintenance of the thin pools of one volume group: what was done, what failed, and when it is tried again.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use topolvm_runtime::Backoff;

/// Back-off after LVM failed to make or extend a pool.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(30), Duration::from_mins(10));

/// The maintenance of the thin pools of one volume group, by device class.
#[derive(Debug, Default)]
pub(super) struct PoolMaintenance {
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
    /// Number of extensions since the start of the process.
    extensions: u64,
    /// Number of failures since then.
    failures: u64,
    /// True if LVM extends the pool automatically, and when that was asked.
    is_monitored: Option<(bool, Instant)>,
}

/// The maintenance of the pool of a class, for metrics.
#[derive(Debug)]
pub struct PoolStatus {
    /// Name of the class.
    pub device_class: String,
    /// Number of extensions since the start of the process.
    pub extensions: u64,
    /// Number of failures since then.
    pub failures: u64,
    /// True if something is to be done for the pool, and is not.
    pub is_held_up: bool,
}

impl Default for Entry {
    fn default() -> Self {
        Self {
            backoff: BACKOFF,
            retry_at: None,
            failure: None,
            obstacle: None,
            extensions: 0,
            failures: 0,
            is_monitored: None,
        }
    }
}

impl PoolMaintenance {
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
    pub(super) fn note_success(&self, class: &str, is_extension: bool) {
        self.edit(class, |entry| {
            entry.extensions += u64::from(is_extension);
            entry.backoff.reset();
            (entry.retry_at, entry.failure) = (None, None);
        });
    }

    /// Stores why a step failed. The next is tried later.
    pub(super) fn note_failure(&self, class: &str, failure: String) {
        self.edit(class, |entry| {
            entry.retry_at = Some(Instant::now() + entry.backoff.fail());
            entry.failure = Some(failure);
            entry.failures += 1;
        });
    }

    /// Stores whether LVM extends the pool of a class automatically.
    pub(super) fn set_monitored(&self, class: &str, is_monitored: bool) {
        self.edit(class, |entry| entry.is_monitored = Some((is_monitored, Instant::now())));
    }

    /// Returns the same, if it was asked within this time.
    pub(super) fn is_monitored(&self, class: &str, within: Duration) -> Option<bool> {
        self.edit(class, |entry| entry.is_monitored.filter(|(_, when)| when.elapsed() < within).map(|(it, _)| it))
    }

    /// Returns the maintenance of each pool.
    pub(super) fn status(&self) -> Vec<PoolStatus> {
        let status = |(class, entry): (&String, &Entry)| PoolStatus {
            device_class: class.clone(),
            extensions: entry.extensions,
            failures: entry.failures,
            is_held_up: entry.failure.is_some() || entry.obstacle.is_some(),
        };
        self.entries.lock().iter().map(status).collect()
    }

    /// Forgets the classes that have no pool to maintain any more.
    pub(super) fn retain(&self, has_pool: impl Fn(&str) -> bool) {
        self.entries.lock().retain(|class, _| has_pool(class));
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
