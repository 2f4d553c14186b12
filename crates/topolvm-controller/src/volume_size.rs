//! Computes the size of a volume from CSI's capacity range. Pure.

use topolvm_api::{GIB, SECTOR_SIZE};

/// Bytes of a volume whose request names no size.
const DEFAULT_SIZE: u64 = GIB;

/// The largest number of bytes that CSI and Kubernetes can express.
const LARGEST: u64 = i64::MAX.unsigned_abs();

/// A capacity range that no size satisfies.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CapacityRangeError {
    #[error("required_bytes is {0}; it must be 0 or more")]
    NegativeRequired(i64),
    #[error("limit_bytes is {0}; it must be 0 or more")]
    NegativeLimit(i64),
    #[error("at least {required} bytes are required but at most {limit} are allowed")]
    RequiredAboveLimit { required: u64, limit: u64 },
    #[error("at most {0} bytes are allowed, less than the smallest volume of {SECTOR_SIZE} bytes")]
    LimitBelowSector(u64),
    #[error("{required} bytes rounded up to a multiple of {SECTOR_SIZE} exceed the limit of {limit} bytes")]
    RoundedAboveLimit { required: u64, limit: u64 },
    #[error(
        "the smallest volume of this kind has {minimum} bytes, but the limit is {limit} bytes; raise the limit, or \
         lower the controller's minimum allocation"
    )]
    MinimumAboveLimit { minimum: u64, limit: u64 },
}

/// The size of a volume to make, and the range of sizes that satisfy the request as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VolumeSize {
    /// Bytes to make, a multiple of [`SECTOR_SIZE`].
    pub(crate) bytes: u64,
    /// Bytes that were asked for, before they were rounded up or raised to a minimum; 0 if none were named.
    requested: u64,
    /// Fewest bytes that satisfy the request.
    required: u64,
    /// `limit_bytes` of the request.
    limit: u64,
}

impl VolumeSize {
    /// Computes the size for CSI's `required_bytes` and `limit_bytes` (0 is "not given"), raised to `minimum` bytes.
    pub(crate) fn from_range(required: i64, limit: i64, minimum: u64) -> Result<Self, CapacityRangeError> {
        use CapacityRangeError as Error;

        let required = u64::try_from(required).map_err(|_| Error::NegativeRequired(required))?;
        let limit = u64::try_from(limit).map_err(|_| Error::NegativeLimit(limit))?;
        let limit = if limit == 0 { LARGEST } else { limit };
        if required > limit {
            return Err(Error::RequiredAboveLimit { required, limit });
        }
        if minimum > limit {
            return Err(Error::MinimumAboveLimit { minimum, limit });
        }
        let raised = required.max(minimum);
        let bytes = if raised == 0 {
            let largest = limit.min(DEFAULT_SIZE);
            largest - largest % SECTOR_SIZE
        } else {
            // Both are far below u64::MAX
            raised.next_multiple_of(SECTOR_SIZE)
        };
        if bytes == 0 {
            Err(Error::LimitBelowSector(limit))
        } else if bytes > limit {
            Err(Error::RoundedAboveLimit { required: raised, limit })
        } else {
            Ok(Self { bytes, requested: required, required, limit })
        }
    }

    /// Returns the size of a snapshot: that of its source, which was asked for with `requested` bytes. Any existing
    /// size is accepted, because a snapshot may have been taken before its source grew.
    pub(crate) fn of_snapshot(bytes: u64, requested: u64) -> Self {
        Self { bytes, requested, required: 0, limit: LARGEST }
    }

    /// Raises the size to `bytes`, the least that a copy takes; `None` if the caller does not allow as many.
    pub(crate) fn raised_to(self, bytes: u64) -> Option<Self> {
        let bytes = self.bytes.max(bytes.checked_next_multiple_of(SECTOR_SIZE)?);
        (bytes <= self.limit).then_some(Self { bytes, ..self })
    }

    /// Returns the bytes that were asked for, unless none were named.
    pub(crate) fn requested(&self) -> Option<u64> {
        Some(self.requested).filter(|&bytes| bytes > 0)
    }

    /// Returns the bytes that were asked for, if they are other than those that are made.
    pub(crate) fn requested_other_than(&self, made: u64) -> Option<u64> {
        self.requested().filter(|&requested| requested != made)
    }

    /// Returns whether an existing volume of this many bytes satisfies the request. One that has grown since it was
    /// made does, so that a repeated request does not fail after an expansion.
    pub(crate) fn accepts(&self, bytes: u64) -> bool {
        (self.required..=self.limit).contains(&bytes)
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
