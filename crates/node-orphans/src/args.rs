//! Flags about LVs whose LogicalVolume does not exist.

use std::time::Duration;

use clap::ValueEnum;
use jiff::SignedDuration;

/// Settings of LVs whose LogicalVolume does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub struct OrphanSettings {
    /// Policy for LVs whose LogicalVolume does not exist.
    #[arg(long = "orphans", value_enum, value_name = "POLICY", default_value = "report")]
    pub policy: OrphanPolicy,

    /// Time for which such an LV must be continuously proven unreferenced before it is moved to quarantine, and again
    /// before it is removed.
    #[arg(long = "orphan-grace-period", value_name = "DURATION", default_value = "24h", value_parser = parse_period)]
    pub grace_period: Duration,

    /// Time for which such an LV stays in quarantine with --orphans=delete.
    #[arg(long = "quarantine-period", value_name = "DURATION", default_value = "168h", value_parser = parse_period)]
    pub quarantine_period: Duration,
}

impl Default for OrphanSettings {
    fn default() -> Self {
        Self {
            policy: OrphanPolicy::Report,
            grace_period: Duration::from_hours(24),
            quarantine_period: Duration::from_hours(168),
        }
    }
}

/// A value of `--orphans`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OrphanPolicy {
    /// Report them
    Report,
    /// Rename them, and keep them until an administrator restores or deletes them
    Quarantine,
    /// Rename them, and remove them after the quarantine period
    Delete,
}

/// Parses a time span as Go writes it, such as 24h. Not zero.
fn parse_period(text: &str) -> Result<Duration, String> {
    let parsed: Option<SignedDuration> = text.parse().ok();
    let period = parsed.and_then(|period| Duration::try_from(period).ok()).filter(|period| !period.is_zero());
    period.ok_or_else(|| "must be a time span such as 30m or 24h, and more than zero".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        orphans: OrphanSettings,
    }

    fn parse(flags: &[&str]) -> Result<OrphanSettings, String> {
        let flags = Flags::try_parse_from([&["x"], flags].concat());
        flags.map(|flags| flags.orphans).map_err(|error| error.to_string())
    }

    #[test]
    fn orphans_are_only_reported_by_default() {
        assert_eq!(parse(&[]).unwrap(), OrphanSettings::default());
        assert_eq!(OrphanSettings::default().policy, OrphanPolicy::Report);
        let set = parse(&["--orphans=delete", "--orphan-grace-period=1h30m", "--quarantine-period=720h"]).unwrap();
        assert_eq!((set.policy, set.grace_period), (OrphanPolicy::Delete, Duration::from_mins(90)));
        assert_eq!(set.quarantine_period, Duration::from_hours(720));
        for (flag, hint) in [
            ("--orphans=remove", "possible values: report, quarantine, delete"),
            ("--orphan-grace-period=0s", "must be a time span such as 30m"),
            ("--quarantine-period=7", "must be a time span such as 30m"),
            ("--orphan-grace-period=-1h", "must be a time span such as 30m"),
        ] {
            let error = parse(&[flag]).unwrap_err();
            assert!(error.contains(hint), "{error}");
        }
    }
}
