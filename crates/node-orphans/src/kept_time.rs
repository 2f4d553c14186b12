//! Time for which LVs are in quarantine, as agents have measured it: the clock of the node may have been wrong when the
//! quarantine began, or be set forward later. The annotation of the Node has it in whole hours for the next agent, so
//! that a restart makes the quarantine longer and never shorter.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;
use topolvm_api::NodeOrphans;

const HOUR: u64 = 3600;

/// The times of LVs in quarantine, by name and time of its beginning.
#[derive(Debug, Default)]
pub(crate) struct KeptTimes(HashMap<(String, i64), KeptTime>);

#[derive(Debug)]
struct KeptTime {
    /// Time that earlier agents have measured.
    before: Duration,
    /// Time since when this one sees it.
    since: Instant,
}

impl KeptTimes {
    /// Stores which LVs are in quarantine now, and since when. Of those that are new `recorded` has the time that
    /// earlier agents have measured.
    pub(crate) fn see<'a>(
        &mut self,
        quarantined: impl Iterator<Item = (&'a str, i64)>,
        recorded: &NodeOrphans,
        now: Instant,
    ) {
        let mut before = std::mem::take(&mut self.0);
        for (lv, at) in quarantined {
            let key = (lv.to_owned(), at);
            let kept = before.remove(&key).unwrap_or_else(|| {
                let is_it =
                    |orphan: &&topolvm_api::OrphanedVolume| orphan.lv == lv && orphan.quarantined_at == Some(at);
                let seconds = recorded.volumes.iter().find(is_it).and_then(|orphan| orphan.kept_seconds);
                KeptTime { before: Duration::from_secs(seconds.unwrap_or(0)), since: now }
            });
            self.0.insert(key, kept);
        }
    }

    /// Returns how long agents have seen an LV in this quarantine.
    pub(crate) fn kept(&self, lv: &str, at: i64, now: Instant) -> Duration {
        let kept = self.0.get(&(lv.to_owned(), at));
        kept.map_or(Duration::ZERO, |kept| kept.before.saturating_add(now.duration_since(kept.since)))
    }
}

/// Returns a time in whole hours, as the annotation has it: it is written once an hour.
pub(crate) fn to_record(kept: Duration) -> Option<u64> {
    Some(kept.as_secs() / HOUR * HOUR).filter(|seconds| *seconds > 0)
}

#[cfg(test)]
mod tests {
    use topolvm_api::OrphanedVolume;

    use super::*;

    fn recorded(quarantined_at: i64, seconds: u64) -> NodeOrphans {
        NodeOrphans::of(vec![OrphanedVolume {
            lv: "a".to_owned(),
            logical_volume: String::new(),
            device_class: "ssd".to_owned(),
            bytes: 1,
            quarantined_at: Some(quarantined_at),
            kept_seconds: Some(seconds),
            note: String::new(),
        }])
    }

    #[test]
    fn time_in_quarantine_goes_on_where_an_agent_ended() {
        let start = Instant::now();
        let later = start + Duration::from_secs(100);
        let mut times = KeptTimes::default();
        times.see([("a", 7)].into_iter(), &recorded(7, 3600), start);
        times.see([("a", 7)].into_iter(), &NodeOrphans::default(), later);
        assert_eq!(times.kept("a", 7, later), Duration::from_secs(3700));
        assert_eq!(to_record(times.kept("a", 7, later)), Some(3600));
        assert_eq!(to_record(Duration::from_secs(3599)), None);
    }

    #[test]
    fn another_quarantine_begins_at_zero() {
        let start = Instant::now();
        let later = start + Duration::from_secs(100);
        let mut times = KeptTimes::default();
        times.see([("a", 8), ("b", 7)].into_iter(), &recorded(7, 3600), start);
        assert_eq!(times.kept("a", 8, later), Duration::from_secs(100));
        assert_eq!(times.kept("a", 7, later), Duration::ZERO);
        // It was given back meanwhile
        times.see([("b", 7)].into_iter(), &recorded(7, 3600), start);
        times.see([("a", 8)].into_iter(), &NodeOrphans::default(), later);
        assert_eq!(times.kept("a", 8, later), Duration::ZERO);
    }
}
