//! How far wiping has come in one volume group, and what went wrong.

use std::collections::BTreeMap;

use parking_lot::{Mutex, MutexGuard};

use super::ToWipe;

/// Told to those who ask; nothing depends on it.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    /// Bytes that are wiped, by the volume's identity.
    done: BTreeMap<String, u64>,
    /// Why a volume could not be wiped, by its identity: its name and the reason.
    failing: BTreeMap<String, (String, String)>,
    /// How often it failed, by class.
    failures: BTreeMap<String, u64>,
}

impl Ledger {
    pub(super) fn progress(&self, uuid: &str, bytes: u64) {
        let mut entries = self.entries();
        entries.failing.remove(uuid);
        entries.done.insert(uuid.to_owned(), bytes);
    }

    pub(super) fn fail(&self, volume: &ToWipe, class: String, why: &str) {
        let mut entries = self.entries();
        // The next attempt begins anew.
        entries.done.remove(&volume.uuid);
        entries.failing.insert(volume.uuid.clone(), (volume.name.clone(), why.to_owned()));
        *entries.failures.entry(class).or_default() += 1;
    }

    /// Forgets all volumes but these. Returns whether one of the others could not be wiped.
    pub(super) fn keep(&self, volumes: &[ToWipe]) -> bool {
        let mut entries = self.entries();
        let is_there = |uuid: &String| volumes.iter().any(|volume| volume.uuid == *uuid);
        entries.done.retain(|uuid, _| is_there(uuid));
        let before = entries.failing.len();
        entries.failing.retain(|uuid, _| is_there(uuid));
        entries.failing.len() < before
    }

    pub(super) fn done(&self, uuid: &str) -> u64 {
        self.entries().done.get(uuid).copied().unwrap_or_default()
    }

    pub(super) fn failures(&self) -> BTreeMap<String, u64> {
        self.entries().failures.clone()
    }

    /// Volumes that could not be wiped when it was tried last, and why.
    pub(crate) fn failing(&self) -> Vec<(String, String)> {
        self.entries().failing.values().cloned().collect()
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock()
    }
}
