//! Volumes whose removal fails, and since when. In the deletion of a namespace objects are deleted a moment before the
//! last pod has ended, which is worth no Event.

use std::collections::HashMap;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

/// Time after which a failure is reported. Most pods end within a few seconds.
const PATIENCE: SignedDuration = SignedDuration::from_secs(20);

/// Time of the first of the failures in a row, by UID.
#[derive(Debug, Default)]
pub(super) struct FailedRemovals(Mutex<HashMap<String, Timestamp>>);

impl FailedRemovals {
    /// Stores a failure, and returns whether removals of the volume have failed for long enough to be reported.
    pub(super) fn have_lasted(&self, uid: &str, now: Timestamp) -> bool {
        let mut first = self.0.lock();
        let first = first.entry(uid.to_owned()).or_insert(now);
        // The clock may have been set back
        *first = now.min(*first);
        now.duration_since(*first) >= PATIENCE
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
}
