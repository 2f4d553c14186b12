//! Since when each LV has been seen to be an orphan.
//!
//! Only this process remembers it: a restart makes the wait longer and never shorter. So does any blocker.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// Times since when LVs have been orphans, by name.
#[derive(Debug, Default)]
pub(crate) struct Observations(HashMap<String, Instant>);

impl Observations {
    /// Stores which LVs are proven to be orphans now. All others start again.
    pub(crate) fn see(&mut self, proven: &[&str], now: Instant) {
        self.0.retain(|lv, _| proven.contains(&lv.as_str()));
        for lv in proven {
            self.0.entry((*lv).to_owned()).or_insert(now);
        }
    }

    /// Returns how long this is proven of an LV without a break; `None` if it is seen for the first time.
    pub(crate) fn waited(&self, lv: &str, now: Instant) -> Option<Duration> {
        self.0.get(lv).map(|since| now.duration_since(*since)).filter(|waited| !waited.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocker_restarts_the_wait() {
        let (mut observations, start) = (Observations::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        observations.see(&["a", "b"], start);
        assert_eq!(observations.waited("a", start), None);
        observations.see(&["b"], after(1));
        observations.see(&["a", "b"], after(2));
        assert_eq!(observations.waited("a", after(5)), Some(Duration::from_secs(3)));
        assert_eq!(observations.waited("b", after(5)), Some(Duration::from_secs(5)));
        assert_eq!(observations.waited("c", after(5)), None);
    }
}
