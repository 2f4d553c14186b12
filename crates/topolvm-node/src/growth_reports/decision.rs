//! Decides by measurements whether a volume is too small. Pure.

use linux_mount::FilesystemUsage;
use topolvm_api::GrowthThresholds;

/// Measurements for which a filesystem that has not followed its LV is waited for. It may never do so: XFS cannot grow
/// by a few MiB, and the growth may have been seen before that of the LV.
const PATIENCE: u32 = 30;

/// A volume that becomes too small is so until this part of it more is free, or the report would come and go with
/// every file.
const HYSTERESIS: u64 = 50;

/// A measurement of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Measurement {
    /// Size of the LV that the filesystem fills.
    size: u64,
    /// Size of the filesystem.
    total: u64,
    /// Measurements since the LV has grown and the filesystem has not.
    waited: u32,
}

/// Returns the measurement to remember, and the size at which the volume is too small, if it is. `reported` is the size
/// in the object now. A volume that has just grown reports no change until its filesystem has grown, too: until then it
/// is as full as before, and would be grown twice.
pub(super) fn decide(
    before: Option<Measurement>,
    reported: Option<u64>,
    size: u64,
    usage: &FilesystemUsage,
    thresholds: GrowthThresholds,
) -> (Measurement, Option<u64>) {
    let total = usage.total_bytes;
    if let Some(before) = before
        && size > before.size
        && total <= before.total
        && before.waited < PATIENCE
    {
        return (Measurement { waited: before.waited.saturating_add(1), ..before }, reported);
    }
    let measurement = Measurement { size, total, waited: 0 };
    let below = |part: fn(u64) -> u64| {
        let inodes = usage.total_inodes;
        let space = thresholds.space.of(total).saturating_add(part(total));
        usage.available_bytes < space
            // btrfs has no number of inodes
            || (inodes > 0 && usage.free_inodes < thresholds.inodes.of(inodes).saturating_add(part(inodes)))
    };
    let too_small_at = if below(|_| 0) {
        Some(size)
    } else if below(|whole| whole / HYSTERESIS) {
        reported.filter(|reported| *reported == size)
    } else {
        None
    };
    (measurement, too_small_at)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;
    use topolvm_api::Amount;

    use super::*;

    const SIZE: u64 = 1000;
    const TENTH: GrowthThresholds = GrowthThresholds { space: Amount::DEFAULT, inodes: Amount::DEFAULT };

    fn usage(total: u64, available: u64, inodes: u64, free_inodes: u64) -> FilesystemUsage {
        FilesystemUsage {
            total_bytes: total,
            used_bytes: total - available,
            available_bytes: available,
            total_inodes: inodes,
            used_inodes: inodes - free_inodes,
            free_inodes,
        }
    }

    #[rstest]
    #[case::enough(None, usage(900, 500, 100, 50), None)]
    #[case::exactly_enough(None, usage(900, 90, 100, 10), None)]
    #[case::too_little_space(None, usage(900, 89, 100, 50), Some(SIZE))]
    #[case::too_few_inodes(None, usage(900, 500, 100, 9), Some(SIZE))]
    #[case::no_number_of_inodes(None, usage(900, 500, 0, 0), None)]
    #[case::a_little_more_than_enough(Some(SIZE), usage(900, 100, 100, 50), Some(SIZE))]
    #[case::a_little_more_than_enough_of_another_size(Some(900), usage(900, 100, 100, 50), None)]
    #[case::enough_again(Some(SIZE), usage(900, 120, 100, 50), None)]
    fn a_volume_is_too_small_below_its_thresholds(
        #[case] reported: Option<u64>,
        #[case] usage: FilesystemUsage,
        #[case] expected: Option<u64>,
    ) {
        assert_eq!(decide(None, reported, SIZE, &usage, TENTH).1, expected);
    }

    #[test]
    fn a_filesystem_that_has_yet_to_grow_is_waited_for() {
        let full = usage(900, 10, 100, 50);
        let (before, reported) = decide(None, None, SIZE, &full, TENTH);
        assert_eq!(reported, Some(SIZE));
        let (waiting, still) = decide(Some(before), reported, 2 * SIZE, &full, TENTH);
        assert_eq!(still, reported);
        let grown = usage(1800, 910, 200, 150);
        assert_eq!(decide(Some(waiting), still, 2 * SIZE, &grown, TENTH).1, None);
        let full_again = usage(1800, 10, 200, 150);
        assert_eq!(decide(Some(waiting), still, 2 * SIZE, &full_again, TENTH).1, Some(2 * SIZE));
        let patient = (0..PATIENCE).fold(before, |before, _| decide(Some(before), reported, 2 * SIZE, &full, TENTH).0);
        assert_eq!(decide(Some(patient), reported, 2 * SIZE, &full, TENTH).1, Some(2 * SIZE));
    }

    proptest! {
        /// The same measurement again writes nothing.
        #[test]
        fn the_same_measurement_twice_says_the_same(
            total in 0_u64..2000, available in 0_u64..2000, inodes in 0_u64..100, free in 0_u64..100,
            reported in prop::option::of(0_u64..2000),
        ) {
            let usage = usage(total, available.min(total), inodes, free.min(inodes));
            let (before, first) = decide(None, reported, SIZE, &usage, TENTH);
            prop_assert_eq!(decide(Some(before), first, SIZE, &usage, TENTH), (before, first));
            prop_assert!(first.is_none_or(|first| first == SIZE));
        }
    }
}
