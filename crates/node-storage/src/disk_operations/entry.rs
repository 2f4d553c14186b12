//! State of a disk operation that the agent keeps in memory between two steps.

use std::time::Duration;

use tokio::time::Instant;
use topolvm_api::DiskOperation;
use topolvm_runtime::Backoff;

use super::decision::End;

/// Pauses between two calls of lvmd.
const CALLS: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_mins(5));
/// Pauses between two writes that fail.
const WRITES: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(5));

/// The memory of an operation.
#[derive(Debug)]
pub(super) struct Entry {
    /// The object as the last write returned it.
    pub(super) written: Option<DiskOperation>,
    /// The end that is not written yet. What was tried is not tried again because the API server is away.
    pub(super) end: Option<End>,
    pub(super) calls: Retry,
    pub(super) writes: Retry,
    /// The time from which the next progress is written.
    pub(super) progress_from: Option<Instant>,
    /// The time at which the finished object is deleted.
    pub(super) expires: Option<Instant>,
}

impl Default for Entry {
    fn default() -> Self {
        Self {
            written: None,
            end: None,
            calls: Retry { backoff: CALLS, next: None },
            writes: Retry { backoff: WRITES, next: None },
            progress_from: None,
            expires: None,
        }
    }
}

impl Entry {
    /// Returns the newer one of the object that the watch shows and the one that was written last.
    pub(super) fn newest(&mut self, seen: &DiskOperation) -> DiskOperation {
        match &self.written {
            Some(written) if resource_version(written) > resource_version(seen) => written.clone(),
            _ => {
                self.written = None;
                seen.clone()
            }
        }
    }

    /// Returns the time at which the next step may be done although nothing has changed.
    pub(super) fn next(&self) -> Option<Instant> {
        let times = [self.calls.next, self.writes.next, self.progress_from, self.expires];
        let now = Instant::now();
        times.into_iter().flatten().filter(|time| *time > now).min()
    }
}

/// A time before which something is not tried again.
#[derive(Debug)]
pub(super) struct Retry {
    backoff: Backoff,
    next: Option<Instant>,
}

impl Retry {
    pub(super) fn is_due(&self) -> bool {
        self.next.is_none_or(|next| next <= Instant::now())
    }

    /// Returns whether nothing was tried since it succeeded last.
    pub(super) const fn is_first(&self) -> bool {
        self.next.is_none()
    }

    /// Sets the time of the next try.
    pub(super) fn postpone(&mut self) {
        self.next = Some(Instant::now() + self.backoff.fail());
    }

    pub(super) const fn reset(&mut self) {
        self.next = None;
        self.backoff.reset();
    }
}

/// Parses the resource version. Kubernetes lets those of one object be compared as numbers since 1.35, and they have
/// always been numbers.
fn resource_version(operation: &DiskOperation) -> Option<u128> {
    operation.metadata.resource_version.as_ref()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_version(version: &str) -> DiskOperation {
        let mut operation = DiskOperation::default();
        operation.metadata.resource_version = Some(version.to_owned());
        operation
    }

    #[test]
    fn own_write_is_used_until_the_watch_shows_it() {
        let mut entry = Entry { written: Some(of_version("10")), ..Entry::default() };
        assert_eq!(entry.newest(&of_version("9")), of_version("10"));
        assert_eq!(entry.newest(&of_version("11")), of_version("11"));
        assert_eq!(entry.written, None);
    }
}
