//! The flags of the snapshotter.

use std::num::{NonZeroU8, NonZeroUsize};
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use topolvm_runtime::time_span::parse_duration;

/// The flags of the snapshotter.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct SnapshotterArgs {
    /// With --controllers=snapshotter: number of snapshots that are created or deleted at the same time.
    #[arg(long, value_name = "COUNT", default_value = "10")]
    pub snapshotter_worker_threads: NonZeroUsize,

    /// With --controllers=snapshotter: pause after the first failure to create or delete a snapshot. It doubles with
    /// each failure.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    pub snapshotter_retry_interval_start: Duration,

    /// With --controllers=snapshotter: longest pause between attempts to create or delete a snapshot.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration)]
    pub snapshotter_retry_interval_max: Duration,

    /// With --controllers=snapshotter: time after which an attempt to create or delete a snapshot counts as failed.
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = parse_duration)]
    pub snapshotter_timeout: Duration,

    /// With --controllers=snapshotter: text before the UID of the VolumeSnapshot in the names of new snapshots.
    #[arg(long, value_name = "PREFIX", default_value = "snapshot", value_parser = NonEmptyStringValueParser::new())]
    pub snapshotter_snapshot_name_prefix: String,

    /// With --controllers=snapshotter: number of digits of the UID in the names of new snapshots. Absent: the whole
    /// UID. With fewer than 32 digits two VolumeSnapshots can get the same snapshot.
    #[arg(long, value_name = "COUNT", value_parser = parse_uid_length)]
    pub snapshotter_snapshot_name_uuid_length: Option<NonZeroU8>,

    /// With --controllers=snapshotter: text before the UID of the VolumeGroupSnapshot in the names of new groups of
    /// snapshots.
    #[arg(
        long, value_name = "PREFIX", default_value = "groupsnapshot", value_parser = NonEmptyStringValueParser::new()
    )]
    pub snapshotter_groupsnapshot_name_prefix: String,

    /// With --controllers=snapshotter: number of digits of the UID in the names of new groups of snapshots. Absent: the
    /// whole UID. With fewer than 32 digits two VolumeGroupSnapshots can get the same snapshots.
    #[arg(long, value_name = "COUNT", value_parser = parse_uid_length)]
    pub snapshotter_groupsnapshot_name_uuid_length: Option<NonZeroU8>,
}

/// Parses a number of hexadecimal digits, of which a UID has 32.
fn parse_uid_length(text: &str) -> Result<NonZeroU8, String> {
    let length = text.parse::<NonZeroU8>().ok().filter(|length| length.get() <= 32);
    length.ok_or_else(|| "expected a number from 1 to 32".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uid_length_is_that_of_a_uid_at_most() {
        assert_eq!(parse_uid_length("32").map(NonZeroU8::get), Ok(32));
        for refused in ["0", "33", "-1", "x"] {
            parse_uid_length(refused).unwrap_err();
        }
    }
}
