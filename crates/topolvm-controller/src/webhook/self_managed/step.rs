//! What is to be done with the certificate. Pure.

use jiff::Timestamp;

use super::stored::Stored;

/// The next thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing before this time.
    Wait(Timestamp),
    /// There is nothing that API servers could trust: make a new certificate and serve it.
    Replace,
    /// Keep this, with a new certificate beside it.
    Stage(Stored),
    /// Keep this, in which the certificate that was made beside the served one has taken its place.
    Promote(Stored),
}

/// What to do now that the Secret has `stored`. `held` is what it had when it was last read; `settled` is when all API servers
/// know the authorities in it.
pub(super) fn next_step(
    stored: Option<&Stored>,
    held: Option<&Stored>,
    names: &[String],
    now: Timestamp,
    settled: Option<Timestamp>,
) -> Step {
    let Some(stored) = stored else {
        // Whoever deletes the Secret wants a new certificate, but until it is known the old one is what is trusted
        return match held {
            Some(held) if held.current.is_valid(now) => Step::Stage(held.clone()),
            Some(_) | None => Step::Replace,
        };
    };
    let is_over = !stored.current.is_valid(now);
    match stored.next.as_ref().filter(|next| next.is_valid(now) && next.is_for(names)) {
        // The old one is refused anyway
        Some(next) if is_over || settled.is_some_and(|at| at <= now) => Step::Promote(stored.promoted(next)),
        Some(_) => {
            let end = stored.current.facts.not_after;
            Step::Wait(settled.map_or(end, |at| at.min(end)))
        }
        None if is_over => Step::Replace,
        None => {
            let due = stored.current.renew_at();
            let is_due = due <= now || stored.next.is_some() || !stored.current.is_for(names);
            if is_due { Step::Stage(stored.clone()) } else { Step::Wait(due) }
        }
    }
}
