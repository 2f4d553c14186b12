//! Volumes whose removal fails, and since when. In the deletion of a namespace objects are deleted a moment before the
//! last pod has ended, which is worth no Event.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

/// Time after which a failure is reported. Most pods end within a few seconds.
const PATIENCE: SignedDuration = SignedDuration::from_secs(20);

/// Failures in a row, by UID.
#[derive(Debug, Default)]
pub(super) struct FailedRemovals(Mutex<HashMap<String, Failures>>);

#[derive(Debug)]
struct Failures {
    first: Timestamp,
    written: Option<Timestamp>,
}

impl FailedRemovals {
    /// Stores a failure, and returns whether removals of the volume have failed for long enough to be reported.
    pub(super) fn have_lasted(&self, uid: &str, now: Timestamp) -> bool {
        let mut failures = self.0.lock();
        let failures = failures.entry(uid.to_owned()).or_insert(Failures { first: now, written: None });
        // The clock may have been set back
        failures.first = now.min(failures.first);
        now.duration_since(failures.first) >= PATIENCE
    }

    /// Returns whether a failure may be written to the object, and stores that it is. A write shows up in the watch,
    /// which has the removal tried again: a message that is another one each time must not keep that going.
    pub(super) fn may_write(&self, uid: &str, now: Timestamp) -> bool {
        let mut failures = self.0.lock();
        let failures = failures.entry(uid.to_owned()).or_insert(Failures { first: now, written: None });
        let may = failures.written.is_none_or(|written| now.duration_since(written).abs() >= PATIENCE);
        failures.written = if may { Some(now) } else { failures.written };
        may
    }

    /// Forgets a volume that is gone.
    pub(super) fn forget(&self, uid: &str) {
        self.0.lock().remove(uid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_is_reported_when_it_has_lasted() {
        let failures = FailedRemovals::default();
        let lasted = |second| failures.have_lasted("u1", Timestamp::from_second(second).unwrap());
        assert_eq!([100, 119, 120, 150].map(lasted), [false, false, true, true]);
        // Set back
        assert_eq!([50, 69, 70].map(lasted), [false, false, true]);
        assert!(!failures.have_lasted("u2", Timestamp::from_second(150).unwrap()));
        failures.forget("u1");
        assert!(!lasted(200));
    }

    #[test]
    fn failure_is_written_now_and_then() {
        let failures = FailedRemovals::default();
        let may = |second| failures.may_write("u1", Timestamp::from_second(second).unwrap());
        assert_eq!([100, 110, 119, 120, 121, 50].map(may), [true, false, false, true, false, true]);
    }
}
