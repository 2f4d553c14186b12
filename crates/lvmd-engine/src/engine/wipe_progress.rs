//! Progress and failures of wiping in one volume group, for metrics and health. Nothing depends on them.

use std::collections::BTreeMap;

use parking_lot::Mutex;

/// Progress and failures of wiping in one volume group.
#[derive(Debug, Default)]
pub(super) struct WipeProgress {
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    /// Wiped bytes, by LVM's UUID of the volume.
    wiped: BTreeMap<String, u64>,
    /// Volumes that could not be wiped when it was last tried, by LVM's UUID: name and reason.
    failing: BTreeMap<String, (String, String)>,
    /// Number of failures since the start of the process, by device class.
    failures: BTreeMap<String, u64>,
}

impl WipeProgress {
    /// Stores how many bytes of a volume are wiped.
    pub(super) fn set_wiped(&self, uuid: &str, bytes: u64) {
        let mut entries = self.entries.lock();
        entries.failing.remove(uuid);
        entries.wiped.insert(uuid.to_owned(), bytes);
    }

    /// Counts a failure. The next attempt begins from the start.
    pub(super) fn add_failure(&self, uuid: &str, name: &str, class: String, why: &str) {
        let mut entries = self.entries.lock();
        entries.wiped.remove(uuid);
        entries.failing.insert(uuid.to_owned(), (name.to_owned(), why.to_owned()));
        *entries.failures.entry(class).or_default() += 1;
    }

    /// Forgets the volumes that are gone. Returns whether one of them could not be wiped.
    pub(super) fn retain(&self, exists: impl Fn(&str) -> bool) -> bool {
        let mut entries = self.entries.lock();
        entries.wiped.retain(|uuid, _| exists(uuid));
        let before = entries.failing.len();
        entries.failing.retain(|uuid, _| exists(uuid));
        entries.failing.len() < before
    }

    /// Returns how many bytes of a volume are wiped.
    pub(super) fn wiped(&self, uuid: &str) -> u64 {
        self.entries.lock().wiped.get(uuid).copied().unwrap_or_default()
    }

    /// Returns the number of failures since the start of the process, by device class.
    pub(super) fn failures(&self) -> BTreeMap<String, u64> {
        self.entries.lock().failures.clone()
    }

    /// Returns the volumes that could not be wiped when it was last tried: name and reason.
    pub(super) fn failing(&self) -> Vec<(String, String)> {
        self.entries.lock().failing.values().cloned().collect()
    }
}
