//! Back-off for LVM's shell after a failure: one slow moment of a machine must not slow down all changes forever.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::shell::UnusableShell;

/// The first pause; each failure in a row doubles it ...
const FIRST_PAUSE: Duration = Duration::from_mins(1);
/// ... up to this.
const LONGEST_PAUSE: Duration = Duration::from_hours(1);

/// Back-off after failures of LVM's shell.
#[derive(Debug)]
pub(super) struct ShellRetry {
    first_pause: Duration,
    failed: Mutex<Failed>,
}

#[derive(Debug, Default)]
struct Failed {
    /// Number of failures in a row.
    times: u32,
    last: Option<Instant>,
}

impl Default for ShellRetry {
    fn default() -> Self {
        Self::new(FIRST_PAUSE)
    }
}

impl ShellRetry {
    pub(super) fn new(first_pause: Duration) -> Self {
        Self { first_pause, failed: Mutex::default() }
    }

    pub(super) fn is_due(&self) -> bool {
        let failed = self.failed.lock();
        failed.last.is_none_or(|last| last.elapsed() >= self.pause(failed.times))
    }

    pub(super) fn succeeded(&self) {
        *self.failed.lock() = Failed::default();
    }

    pub(super) fn failed(&self, why: UnusableShell) {
        let mut failed = self.failed.lock();
        *failed = Failed { times: failed.times.saturating_add(1), last: Some(Instant::now()) };
        let pause = self.pause(failed.times);
        let again_in_seconds = pause.as_secs();
        tracing::info!(%why, again_in_seconds, "the LVM shell cannot be used; using one process per command");
    }

    fn pause(&self, failures: u32) -> Duration {
        let doubled = 2_u32.saturating_pow(failures.saturating_sub(1));
        self.first_pause.saturating_mul(doubled).min(LONGEST_PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest_and_a_success_ends_them() {
        let retry = ShellRetry::default();
        assert!(retry.is_due());
        let pauses = [1, 2, 3, 7, 40].map(|failures| retry.pause(failures).as_secs());
        assert_eq!(pauses, [60, 120, 240, 3600, 3600]);
        retry.failed(UnusableShell::Slow);
        assert!(!retry.is_due());
        retry.succeeded();
        assert!(retry.is_due());
    }
}
