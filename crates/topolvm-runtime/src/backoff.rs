//! How long to wait before the next try.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Pauses that double from one try to the next, up to a limit.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    limit: Duration,
    failures: u32,
}

impl Backoff {
    /// Pauses from `first` to `limit`.
    #[must_use]
    pub const fn new(first: Duration, limit: Duration) -> Self {
        Self { first, limit, failures: 0 }
    }

    /// The pause after one more failure.
    pub fn fail(&mut self) -> Duration {
        let pause = self.first.saturating_mul(2_u32.saturating_pow(self.failures)).min(self.limit);
        self.failures = self.failures.saturating_add(1);
        pause
    }

    /// Begins anew after a success.
    pub const fn reset(&mut self) {
        self.failures = 0;
    }
}

/// A [`Backoff`] for each of many things.
#[derive(Debug)]
pub struct Backoffs<K> {
    fresh: Backoff,
    failing: Mutex<HashMap<K, Backoff>>,
}

impl<K: Eq + Hash> Backoffs<K> {
    /// Each begins like `fresh`.
    #[must_use]
    pub fn new(fresh: Backoff) -> Self {
        Self { fresh, failing: Mutex::default() }
    }

    /// The pause after one more failure of this one.
    pub fn fail(&self, key: K) -> Duration {
        self.lock().entry(key).or_insert_with(|| self.fresh.clone()).fail()
    }

    /// This one has succeeded, or is gone.
    pub fn forget(&self, key: &K) {
        self.lock().remove(key);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<K, Backoff>> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_limit_and_begin_anew_after_a_success() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        let pauses: Vec<_> = (0..6).map(|_| backoff.fail().as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1000, 1000]);
        backoff.failures = u32::MAX;
        assert_eq!(backoff.fail(), Duration::from_secs(1));
        backoff.reset();
        assert_eq!(backoff.fail(), Duration::from_millis(100));
    }

    #[test]
    fn each_thing_has_pauses_of_its_own_which_begin_anew_after_a_success() {
        let backoffs = Backoffs::new(Backoff::new(Duration::from_millis(200), Duration::from_secs(30)));
        let pauses: Vec<_> = (0..9).map(|_| backoffs.fail("a").as_millis()).collect();
        assert_eq!(pauses, [200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000]);
        assert_eq!(backoffs.fail("b"), Duration::from_millis(200));
        backoffs.forget(&"a");
        assert_eq!(backoffs.fail("a"), Duration::from_millis(200));
    }
}
