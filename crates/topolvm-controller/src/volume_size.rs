//! From CSI's capacity range to the size of the volume to make. Pure.

use topolvm_api::{GIB, SECTOR_SIZE};

/// The size of a volume for which no size was asked.
const DEFAULT_SIZE: u64 = GIB;

/// The largest size that CSI and Kubernetes can express.
const LARGEST: u64 = i64::MAX.unsigned_abs();

/// Why no size satisfies a capacity range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CapacityRangeError {
    #[error("required_bytes is {0}; a size is at least 0")]
    NegativeRequired(i64),
    #[error("limit_bytes is {0}; a limit is at least 0")]
    NegativeLimit(i64),
    #[error("at least {required} bytes are required but at most {limit} are allowed")]
    RequiredAboveLimit { required: u64, limit: u64 },
    #[error("at most {0} bytes are allowed, less than the smallest volume of {SECTOR_SIZE} bytes")]
    LimitBelowSector(u64),
    #[error("{required} bytes are rounded up to a multiple of {SECTOR_SIZE}, which is more than {limit} bytes")]
    RoundedAboveLimit { required: u64, limit: u64 },
    #[error(
        "the smallest volume of this kind has {minimum} bytes but at most {limit} are allowed; ask for more, or lower \
         the controller's minimum allocation"
    )]
    MinimumAboveLimit { minimum: u64, limit: u64 },
}

/// The size of the volume to make, and which other sizes would also do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VolumeSize {
    /// Bytes to make, a multiple of [`SECTOR_SIZE`].
    pub(crate) bytes: u64,
    /// Bytes that the caller needs, before they were rounded up or raised to a minimum.
    at_least: u64,
    /// Bytes that the caller allows.
    at_most: u64,
}

impl VolumeSize {
    /// The size for CSI's `required_bytes` and `limit_bytes` (0 is "not given"), raised to `minimum` bytes.
    pub(crate) fn from_range(required: i64, limit: i64, minimum: u64) -> Result<Self, CapacityRangeError> {
        use CapacityRangeError as Error;

        let at_least = u64::try_from(required).map_err(|_| Error::NegativeRequired(required))?;
        let limit = u64::try_from(limit).map_err(|_| Error::NegativeLimit(limit))?;
        let at_most = if limit == 0 { LARGEST } else { limit };
        if at_least > at_most {
            return Err(Error::RequiredAboveLimit { required: at_least, limit });
        }
        if minimum > at_most {
            return Err(Error::MinimumAboveLimit { minimum, limit: at_most });
        }
        let required = at_least.max(minimum);
        let bytes = if required == 0 {
            let largest = at_most.min(DEFAULT_SIZE);
            largest - largest % SECTOR_SIZE
        } else {
            // Both are far below u64::MAX
            required.next_multiple_of(SECTOR_SIZE)
        };
        if bytes == 0 {
            Err(Error::LimitBelowSector(limit))
        } else if bytes > at_most {
            Err(Error::RoundedAboveLimit { required, limit: at_most })
        } else {
            Ok(Self { bytes, at_least, at_most })
        }
    }

    /// The size of a snapshot: it is what its source is, and one that was taken before the source grew is as good.
    pub(crate) fn of_snapshot(bytes: u64) -> Self {
        Self { bytes, at_least: 0, at_most: LARGEST }
    }

    /// Raised to the bytes that a copy takes at least, or `None` if the caller does not allow as many.
    pub(crate) fn raised_to(self, bytes: u64) -> Option<Self> {
        let bytes = self.bytes.max(bytes.checked_next_multiple_of(SECTOR_SIZE)?);
        (bytes <= self.at_most).then_some(Self { bytes, ..self })
    }

    /// The bytes that were asked for, if any were.
    pub(crate) fn asked(&self) -> Option<u64> {
        Some(self.at_least).filter(|&bytes| bytes > 0)
    }

    /// Whether a volume of this many bytes satisfies the request as well. A volume that has grown since it was made
    /// does, so that a repeated request does not fail after an expansion.
    pub(crate) fn accepts(&self, bytes: u64) -> bool {
        (self.at_least..=self.at_most).contains(&bytes)
    }
}

/// How a volume will be used, as far as its size depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Block,
    /// With this filesystem; empty is the node's default.
    Mount(String),
}

/// The smallest volumes that are made, in bytes. Smaller requests are raised to these sizes, because mkfs refuses
/// devices that are too small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinimumAllocation {
    /// For raw block volumes.
    pub block: u64,
    /// For ext4, and where no filesystem is named: the node then makes ext4.
    pub ext4: u64,
    /// For XFS.
    pub xfs: u64,
    /// For Btrfs.
    pub btrfs: u64,
}

impl MinimumAllocation {
    /// The minimum for a use, in bytes; 0 for a filesystem that is not made.
    pub(crate) fn of(&self, access: &Access) -> u64 {
        match access {
            Access::Block => self.block,
            Access::Mount(filesystem) => match filesystem.as_str() {
                "" | "ext4" => self.ext4,
                "xfs" => self.xfs,
                "btrfs" => self.btrfs,
                _ => 0,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::CapacityRangeError::*;
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB_: i64 = 1 << 30;

    #[rstest]
    #[case::nothing_asked(0, 0, GIB)]
    #[case::limit_above_the_default(0, 2 * GIB_, GIB)]
    #[case::limit_is_the_default(0, GIB_, GIB)]
    #[case::limit_below_the_default(0, 10_000, 8192)]
    #[case::limit_of_one_sector(0, 4096, 4096)]
    #[case::rounded_up(1, 0, 4096)]
    #[case::exact(GIB_, GIB_, GIB)]
    #[case::rounded_up_to_the_limit(4097, 8192, 8192)]
    #[case::above_the_default(2 * GIB_, 0, 2 * GIB)]
    #[case::no_limit_on_a_huge_request(i64::MAX - 4095, 0, LARGEST - 4095)]
    fn sizes_are_whole_sectors_within_the_range(#[case] required: i64, #[case] limit: i64, #[case] bytes: u64) {
        assert_eq!(VolumeSize::from_range(required, limit, 0).map(|size| size.bytes), Ok(bytes));
    }

    #[rstest]
    #[case(-1, 0, NegativeRequired(-1))]
    #[case(0, -1, NegativeLimit(-1))]
    #[case(2, 1, RequiredAboveLimit { required: 2, limit: 1 })]
    #[case(0, 4095, LimitBelowSector(4095))]
    #[case(4097, 8191, RoundedAboveLimit { required: 4097, limit: 8191 })]
    #[case(i64::MAX, 0, RoundedAboveLimit { required: LARGEST, limit: LARGEST })]
    fn ranges_that_no_volume_satisfies_are_refused(
        #[case] required: i64,
        #[case] limit: i64,
        #[case] error: CapacityRangeError,
    ) {
        assert_eq!(VolumeSize::from_range(required, limit, 0), Err(error));
    }

    #[rstest]
    #[case::raised(GIB_ / 1024, 0, 300 * MIB, Ok(300 * MIB))]
    #[case::nothing_asked(0, 0, 300 * MIB, Ok(300 * MIB))]
    #[case::more_was_asked(GIB_, 0, 300 * MIB, Ok(GIB))]
    #[case::not_allowed(1, 4096, MIB, Err(MinimumAboveLimit { minimum: MIB, limit: 4096 }))]
    #[case::minimum_is_rounded(1, 0, 5000, Ok(8192))]
    fn small_requests_are_raised_to_the_minimum(
        #[case] required: i64,
        #[case] limit: i64,
        #[case] minimum: u64,
        #[case] result: Result<u64, CapacityRangeError>,
    ) {
        assert_eq!(VolumeSize::from_range(required, limit, minimum).map(|size| size.bytes), result);
    }

    #[rstest]
    #[case::the_size_itself(GIB_, 0, GIB, true)]
    #[case::grown_since(GIB_, 0, 2 * GIB, true)]
    #[case::grown_past_the_limit(GIB_, GIB_, 2 * GIB, false)]
    #[case::smaller(2 * GIB_, 0, GIB, false)]
    #[case::made_before_the_minimum_was_raised(4096, 0, 4096, true)]
    fn an_existing_volume_is_accepted_if_it_is_in_the_range(
        #[case] required: i64,
        #[case] limit: i64,
        #[case] existing: u64,
        #[case] accepted: bool,
    ) {
        let size = VolumeSize::from_range(required, limit, u64::from(limit == 0) * MIB).unwrap();
        assert_eq!(size.accepts(existing), accepted);
    }

    #[rstest]
    #[case(Access::Block, 8)]
    #[case(Access::Mount(String::new()), 32)]
    #[case(Access::Mount("ext4".to_owned()), 32)]
    #[case(Access::Mount("xfs".to_owned()), 300)]
    #[case(Access::Mount("btrfs".to_owned()), 200)]
    #[case(Access::Mount("XFS".to_owned()), 0)]
    #[case(Access::Mount("zfs".to_owned()), 0)]
    fn the_minimum_depends_on_the_use(#[case] access: Access, #[case] minimum: u64) {
        let minimums = MinimumAllocation { block: 8, ext4: 32, xfs: 300, btrfs: 200 };
        assert_eq!(minimums.of(&access), minimum);
    }

    proptest! {
        #[test]
        fn a_size_is_whole_sectors_and_accepted_by_its_own_request(
            required in 0..i64::MAX, limit in 0..i64::MAX, minimum in 0..LARGEST
        ) {
            if let Ok(size) = VolumeSize::from_range(required, limit, minimum) {
                prop_assert!(size.bytes > 0 && size.bytes.is_multiple_of(SECTOR_SIZE));
                prop_assert!(size.bytes >= minimum);
                prop_assert!(size.accepts(size.bytes));
            }
        }
    }
}
