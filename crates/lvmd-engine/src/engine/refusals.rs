//! The creations that LVM refuses in one volume group regardless of free space, and those that still need a test with
//! LVM. No capacity is published for either until LVM has created a volume.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use topolvm_runtime::Backoff;

/// Back-off between two proofs while the metadata of the group stay as they are.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_mins(10));
/// Least time between two proofs while others change the metadata of the group.
const LEAST_INTERVAL: Duration = Duration::from_secs(5);

/// The options of a creation: those of an option class, else those of the device class.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CreationOptions {
    /// The device class.
    pub(super) class: String,
    /// The option class; empty for none.
    pub(super) option_class: String,
}

/// The refused and unproven creations of one volume group.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    entries: Mutex<BTreeMap<CreationOptions, Entry>>,
}

#[derive(Debug)]
struct Entry {
    /// The message of LVM; `None` while nothing is known.
    reason: Option<String>,
    backoff: Backoff,
    /// Time of the last proof that failed, the count of changes of the metadata after it, and the time of the next.
    tried: Option<(Instant, u64)>,
    retry_at: Instant,
}

impl Refusals {
    /// Stores that these creations need a test with LVM.
    pub(super) fn expect_proof(&self, options: CreationOptions) {
        let unproven = || Entry { reason: None, backoff: BACKOFF, tried: None, retry_at: Instant::now() };
        self.entries.lock().entry(options).or_insert_with(unproven);
    }

    /// Stores that LVM refuses these creations. `seqno` counts the changes of the group's metadata.
    pub(super) fn note_refused(&self, options: CreationOptions, reason: String, seqno: u64) {
        let now = Instant::now();
        let mut entries = self.entries.lock();
        let entry = entries.entry(options);
        let entry = entry.or_insert_with(|| Entry { reason: None, backoff: BACKOFF, tried: None, retry_at: now });
        entry.reason = Some(reason);
        entry.tried = Some((now, seqno));
        entry.retry_at = now + entry.backoff.fail();
    }

    /// Stores that LVM does not refuse these creations. Returns whether that was not known.
    pub(super) fn note_accepted(&self, options: &CreationOptions) -> bool {
        self.entries.lock().remove(options).is_some()
    }

    /// Returns the message with which LVM refuses these creations.
    pub(super) fn reason(&self, options: &CreationOptions) -> Option<String> {
        self.entries.lock().get(options)?.reason.clone()
    }

    /// Returns whether LVM refuses these creations, or has to prove that it does not.
    pub(super) fn withholds(&self, options: &CreationOptions) -> bool {
        self.entries.lock().contains_key(options)
    }

    /// Returns the creations that are to be tried now, in a group whose metadata have this count of changes.
    pub(super) fn due(&self, seqno: u64) -> Vec<CreationOptions> {
        let now = Instant::now();
        let is_due = |entry: &Entry| {
            let changed = entry.tried.is_some_and(|(when, tried)| tried != seqno && now >= when + LEAST_INTERVAL);
            changed || now >= entry.retry_at
        };
        let entries = self.entries.lock();
        entries.iter().filter(|(_, entry)| is_due(entry)).map(|(options, _)| options.clone()).collect()
    }

    /// Forgets the creations that are no longer possible.
    pub(super) fn retain(&self, is_possible: impl Fn(&CreationOptions) -> bool) {
        self.entries.lock().retain(|options, _| is_possible(options));
    }

    /// Returns the refused creations, each with the message of LVM.
    pub(super) fn all(&self) -> Vec<(CreationOptions, String)> {
        let entries = self.entries.lock();
        entries.iter().filter_map(|(options, entry)| Some((options.clone(), entry.reason.clone()?))).collect()
    }
}

impl CreationOptions {
    /// Returns the options of a device class itself.
    pub(super) fn of_class(class: &str) -> Self {
        Self { class: class.to_owned(), option_class: String::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn refusals_are_due_later_or_after_a_metadata_change() {
        let (refusals, ssd) = (Refusals::default(), CreationOptions::of_class("ssd"));
        refusals.expect_proof(ssd.clone());
        assert!(refusals.withholds(&ssd) && refusals.reason(&ssd).is_none());
        assert_eq!(refusals.due(7), std::slice::from_ref(&ssd));
        let mut pauses = Vec::new();
        for _ in 0..3 {
            refusals.note_refused(ssd.clone(), "no".to_owned(), 7);
            let refused = Instant::now();
            while refusals.due(7).is_empty() {
                tokio::time::advance(Duration::from_secs(1)).await;
            }
            pauses.push(refused.elapsed().as_secs());
        }
        assert_eq!(pauses, [5, 10, 20]);
        refusals.note_refused(ssd.clone(), "no".to_owned(), 7);
        assert!(refusals.due(8).is_empty());
        tokio::time::advance(LEAST_INTERVAL).await;
        assert!(refusals.due(7).is_empty() && !refusals.due(8).is_empty());
        assert!(refusals.note_accepted(&ssd) && !refusals.withholds(&ssd));
    }
}
