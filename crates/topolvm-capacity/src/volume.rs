//! Reads what a `LogicalVolume` has on the disks and what it still takes. Pure.

use topolvm_api::{LogicalVolume, parse_bytes};

/// The bytes of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct VolumeBytes {
    /// Its bytes on the disks, as its node reports.
    pub(crate) on_disk: u64,
    /// Bytes that its node is about to take for it.
    pub(crate) pending: u64,
    /// True if more may be on the disks soon than is now, also after a failure: its node may try again.
    pub(crate) may_grow: bool,
}

impl VolumeBytes {
    pub(crate) fn from_object(volume: &LogicalVolume) -> Self {
        let wanted = parse_bytes(&volume.spec.size).unwrap_or(0);
        let on_disk = match (volume.volume_id(), volume.current_bytes()) {
            (None, _) => 0,
            (Some(_), Some(bytes)) => bytes,
            // TopoLVM's agent reports the real size a moment later
            (Some(_), None) => wanted,
        };
        let missing = wanted.saturating_sub(on_disk);
        let is_given_up = volume.failure().is_some() || volume.is_deleting();
        Self { on_disk, pending: if is_given_up { 0 } else { missing }, may_grow: missing > 0 && !volume.is_deleting() }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use topolvm_testkit::fixtures::{LogicalVolumeBuilder, logical_volume};

    use super::*;

    const GIB: u64 = 1 << 30;

    fn two() -> LogicalVolumeBuilder {
        logical_volume("pvc-1").sized("2Gi")
    }

    #[rstest]
    #[case::new(two(), 0, 2 * GIB, true)]
    #[case::made(two().ready("u", "2Gi"), 2 * GIB, 0, false)]
    #[case::rounded_up(two().ready("u", "2052Mi"), 2052 << 20, 0, false)]
    #[case::growing(two().ready("u", "1Gi"), GIB, GIB, true)]
    #[case::failed(two().failed(8, "full"), 0, 0, true)]
    #[case::snapshot(two().from_source("pvc-0", "ro"), 0, 2 * GIB, true)]
    fn what_is_wanted_and_not_on_the_disks_is_pending(
        #[case] volume: LogicalVolumeBuilder,
        #[case] on_disk: u64,
        #[case] pending: u64,
        #[case] may_grow: bool,
    ) {
        assert_eq!(VolumeBytes::from_object(&volume.build()), VolumeBytes { on_disk, pending, may_grow });
    }

    #[test]
    fn a_volume_that_is_being_deleted_takes_nothing_more() {
        let mut volume = two().build();
        volume.metadata.deletion_timestamp = Some(serde_json::from_str("\"2026-01-01T00:00:00Z\"").unwrap());
        assert_eq!(VolumeBytes::from_object(&volume), VolumeBytes::default());
    }

    #[test]
    fn volume_without_current_size_counts_with_its_requested_size() {
        let mut volume = two().ready("u", "1Gi").build();
        volume.status.as_mut().unwrap().current_size = None;
        assert_eq!(VolumeBytes::from_object(&volume).on_disk, 2 * GIB);
    }
}
