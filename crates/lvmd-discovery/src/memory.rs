//! The memory of discovery: facts about disks that it keeps from one scan to the next.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use block_device::{Disk, Number};
use lvm::GroupDisk;
use lvmd_config::Refusal;
use tokio::time::Instant;

/// Time after which a disk that could not be added is tried again.
const RETRY: Duration = Duration::from_mins(5);

/// A disk until it is pulled out, becomes larger, or the machine is booted.
type Key = (Number, u64, u64);

/// The memory of discovery.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Since when a disk is a candidate.
    candidates: HashMap<Key, Instant>,
    /// Times at which disks could not be added, and why.
    failures: HashMap<Key, (Instant, Refusal)>,
    /// Identities and sizes of physical volumes that were resized: LVM may leave some of the disk unused.
    resized: HashSet<(String, u64)>,
    /// Times at which these could not be resized.
    resize_failures: HashMap<(String, u64), Instant>,
}

fn key(disk: &Disk) -> Key {
    (disk.number, disk.sequence, disk.size)
}

impl Memory {
    /// Remembers the candidates of this scan. A disk that was none in the last scan starts its settle time.
    pub(super) fn note_candidates<'a>(&mut self, candidates: impl IntoIterator<Item = &'a Disk>) {
        let now = Instant::now();
        let before = std::mem::take(&mut self.candidates);
        let since = |disk| (key(disk), before.get(&key(disk)).copied().unwrap_or(now));
        self.candidates = candidates.into_iter().map(since).collect();
    }

    /// Returns how long a candidate must still be seen before it has been one for so long.
    pub(super) fn remaining(&self, disk: &Disk, settle: Duration) -> Duration {
        let since = self.candidates.get(&key(disk));
        since.map_or(settle, |since| settle.saturating_sub(since.elapsed()))
    }

    /// Remembers that a disk could not be added.
    pub(super) fn note_failure(&mut self, disk: &Disk, refusal: Refusal) {
        self.failures.insert(key(disk), (Instant::now(), refusal));
    }

    /// Returns the reason for which a disk could not be added a short while ago.
    pub(super) fn recent_failure(&self, disk: &Disk) -> Option<&Refusal> {
        self.failures.get(&key(disk)).filter(|(when, _)| when.elapsed() < RETRY).map(|(_, refusal)| refusal)
    }

    /// Forgets the failures of disks that are gone.
    pub(super) fn forget_all_but<'a>(&mut self, disks: impl IntoIterator<Item = &'a Disk>) {
        let known: HashSet<_> = disks.into_iter().map(key).collect();
        self.failures.retain(|key, _| known.contains(key));
    }

    /// Returns how long to wait before a physical volume is resized; `None` if it was, to the size of its disk.
    pub(super) fn resize_delay(&self, pv: &GroupDisk) -> Option<Duration> {
        let key = (pv.uuid.clone(), pv.device_size);
        let failed = self.resize_failures.get(&key);
        let delay = failed.map_or(Duration::ZERO, |when| RETRY.saturating_sub(when.elapsed()));
        (!self.resized.contains(&key)).then_some(delay)
    }

    /// Stores whether a physical volume was resized.
    pub(super) fn note_resize(&mut self, pv: &GroupDisk, is_resized: bool) {
        let key = (pv.uuid.clone(), pv.device_size);
        if is_resized {
            self.resize_failures.remove(&key);
            self.resized.insert(key);
        } else {
            self.resize_failures.insert(key, Instant::now());
        }
    }
}
