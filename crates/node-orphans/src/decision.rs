//! Decides the next step for an LV without an object. Pure.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::args::{OrphanPolicy, OrphanSettings};
use crate::candidate::Candidate;
use crate::proof::Blocker;

/// Next step with an LV.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It stays as it is, with this note for people.
    Leave(String),
    /// It is put into quarantine.
    Quarantine,
    /// It is removed; it was put into quarantine at this time.
    Remove(i64),
}

impl OrphanSettings {
    /// Returns whether an LV needs a step as soon as it is proven unused for long enough. `kept` is the time for which
    /// agents have seen it in quarantine: the quarantine is over only by both that time and the clock.
    pub(crate) fn is_due(&self, candidate: &Candidate, kept: Duration, now: Timestamp) -> bool {
        match (self.policy, candidate.is_quarantined) {
            (OrphanPolicy::Report, _) | (OrphanPolicy::Quarantine, true) => false,
            (OrphanPolicy::Quarantine | OrphanPolicy::Delete, false) => true,
            (OrphanPolicy::Delete, true) => {
                self.kept_until(candidate).is_some_and(|until| until <= now) && kept >= self.quarantine_period
            }
        }
    }

    /// Returns the time until which an LV is kept in quarantine; `None` if it has no tag with its beginning.
    fn kept_until(&self, candidate: &Candidate) -> Option<Timestamp> {
        let since = Timestamp::from_second(candidate.quarantined_at?).ok()?;
        since.checked_add(SignedDuration::try_from(self.quarantine_period).ok()?).ok()
    }
}

/// Chooses the next step for an LV with this blocker, which was proven to be an orphan for `waited` before, and which
/// agents have seen in quarantine for `kept`.
pub(crate) fn choose_step(
    settings: &OrphanSettings,
    candidate: &Candidate,
    blocker: Option<&Blocker>,
    waited: Option<Duration>,
    kept: Duration,
    now: Timestamp,
) -> Step {
    let grace = SignedDuration::try_from(settings.grace_period).unwrap_or(SignedDuration::MAX);
    if !settings.is_due(candidate, kept, now) {
        return Step::Leave(match (settings.policy, candidate.is_quarantined, settings.kept_until(candidate)) {
            (OrphanPolicy::Delete, true, Some(until)) if until > now => {
                format!("in quarantine until {until}, then removed")
            }
            (OrphanPolicy::Delete, true, Some(_)) => {
                let left = settings.quarantine_period.saturating_sub(kept).as_secs().div_ceil(3600);
                format!("in quarantine for {left} more hours of topolvm-node running, then removed")
            }
            (_, true, _) => "in quarantine until an administrator restores or deletes it".to_owned(),
            (_, false, _) => "only reported (--orphans=report)".to_owned(),
        });
    }
    if let Some(blocker) = blocker {
        return Step::Leave(format!("kept: {blocker}"));
    }
    let is_proven = waited.is_some_and(|waited| waited >= settings.grace_period);
    match (is_proven, candidate.is_quarantined, candidate.quarantined_at) {
        (false, false, _) => Step::Leave(format!("moved to quarantine after it has been unreferenced for {grace:#}")),
        (false, true, _) => Step::Leave(format!("removed after it has been unreferenced for {grace:#}")),
        (true, false, _) => Step::Quarantine,
        (true, true, Some(at)) => Step::Remove(at),
        (true, true, None) => Step::Leave("in quarantine until an administrator restores or deletes it".to_owned()),
    }
}

#[cfg(test)]
mod tests;
