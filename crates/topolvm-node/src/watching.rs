//! How the agent watches the API server: a server that went away is back for it within seconds of its return.

use std::time::Duration;

use kube::runtime::utils;
use kube::runtime::watcher;
use topolvm_runtime::Backoff;

/// The API server ends a watch after this many seconds, and a connection on which nothing comes for a little longer is given up. It
/// bounds how long a connection that died silently, as when a network is cut, can go unnoticed.
const WATCH_SECONDS: u32 = 60;

/// What all watches of the agent begin with.
pub(crate) fn config() -> watcher::Config {
    watcher::Config::default().timeout(WATCH_SECONDS)
}

/// Pauses between attempts to watch, 0.2 s doubling to 5 s. kube's own go up to half a minute, for which nothing could be made on the
/// node after a long outage.
#[derive(Clone, Debug)]
pub(crate) struct Reconnect(Backoff);

impl Default for Reconnect {
    fn default() -> Self {
        Self(Backoff::new(Duration::from_millis(200), Duration::from_secs(5)))
    }
}

impl Iterator for Reconnect {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(self.0.fail())
    }
}

impl utils::Backoff for Reconnect {
    fn reset(&mut self) {
        self.0.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_long_outage_the_next_attempt_is_five_seconds_away_and_after_a_success_a_moment() {
        let mut pauses = Reconnect::default();
        assert_eq!(pauses.by_ref().take(100).max(), Some(Duration::from_secs(5)));
        utils::Backoff::reset(&mut pauses);
        assert_eq!(pauses.next(), Some(Duration::from_millis(200)));
    }
}
