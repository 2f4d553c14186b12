//! Since when it is proven of each LV that nobody misses it.
//!
//! Only this process remembers it: a restart makes the wait longer and never shorter. So does any doubt.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

/// The times since when LVs are proven to be orphans, by name.
#[derive(Debug, Default)]
pub(crate) struct Sightings(HashMap<String, Instant>);

impl Sightings {
    /// Stores which LVs are proven to be orphans now. All others begin anew.
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
    fn a_doubt_makes_the_wait_begin_anew() {
        let (mut sightings, start) = (Sightings::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        sightings.see(&["a", "b"], start);
        assert_eq!(sightings.waited("a", start), None);
        sightings.see(&["b"], after(1));
        sightings.see(&["a", "b"], after(2));
        assert_eq!(sightings.waited("a", after(5)), Some(Duration::from_secs(3)));
        assert_eq!(sightings.waited("b", after(5)), Some(Duration::from_secs(5)));
        assert_eq!(sightings.waited("c", after(5)), None);
    }
}
