//! Exponential back-off.

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

    /// Returns the pause after one more failure.
    pub fn fail(&mut self) -> Duration {
        let pause = self.first.saturating_mul(2_u32.saturating_pow(self.failures)).min(self.limit);
        self.failures = self.failures.saturating_add(1);
        pause
    }

    /// Begins again with the first pause, after a success.
    pub const fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_limit_and_reset_after_a_success() {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(1));
        let pauses: Vec<_> = (0..6).map(|_| backoff.fail().as_millis()).collect();
        assert_eq!(pauses, [100, 200, 400, 800, 1000, 1000]);
        backoff.failures = u32::MAX;
        assert_eq!(backoff.fail(), Duration::from_secs(1));
        backoff.reset();
        assert_eq!(backoff.fail(), Duration::from_millis(100));
    }
}
