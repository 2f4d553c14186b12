//! Parses time spans of flags. Pure.

use std::time::Duration;

use jiff::SignedDuration;

/// Parses a time span as Go writes it, such as 10m or 1h30m. Not zero.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let parsed: Option<SignedDuration> = text.parse().ok();
    let span = parsed.and_then(|span| Duration::try_from(span).ok()).filter(|span| !span.is_zero());
    span.ok_or_else(|| "must be a duration greater than zero, such as 15s, 10m or 24h".to_owned())
}

/// Parses a time span as Go writes it. 0 may have no unit.
pub fn parse_duration_or_zero(text: &str) -> Result<Duration, String> {
    let is_zero = text == "0" || text.parse::<SignedDuration>().is_ok_and(|span| span.is_zero());
    if is_zero { Ok(Duration::ZERO) } else { parse_duration(text) }
}
