//! Automatic growth of claims: annotations that users write, and annotations that controller and agent exchange about
//! it on the LogicalVolume.
//!
//! The names and meanings of the former are those of pvc-autoresizer, which clusters with TopoLVM use; they are the
//! same in both API groups.

use std::fmt;
use std::str::FromStr;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::quantity::parse_bytes;

/// StorageClass annotation that lets claims grow automatically, with the value `true`.
pub const GROWTH_ENABLED: &str = "resize.topolvm.io/enabled";
/// Claim annotation: size up to which the claim grows. Without it the claim does not.
pub const GROWTH_LIMIT: &str = "resize.topolvm.io/storage_limit";
/// Claim annotation: free space below which the claim grows, an [`Amount`] of the filesystem.
pub const GROWTH_THRESHOLD: &str = "resize.topolvm.io/threshold";
/// Claim annotation: free inodes below which the claim grows, a percentage.
pub const GROWTH_INODES_THRESHOLD: &str = "resize.topolvm.io/inodes-threshold";
/// Claim annotation: what the claim grows by, an [`Amount`] of its size.
pub const GROWTH_INCREASE: &str = "resize.topolvm.io/increase";

/// Number of hundredths of a percent in a whole.
const WHOLE: u32 = 10_000;

/// Bytes, or a part of something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// Hundredths of a percent, from 0 to 10000.
    Share(u32),
    /// Bytes.
    Bytes(u64),
}

/// The text is no amount.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a valid amount; use a percentage from 0% to 100%, such as 10%, or a size such as 5Gi")]
pub struct ParseAmountError(String);

impl Amount {
    /// The amount if none is given: 10%.
    pub const DEFAULT: Self = Self::Share(WHOLE / 10);

    /// Returns the amount of a whole.
    #[must_use]
    pub fn of(self, whole: u64) -> u64 {
        match self {
            Self::Share(share) => {
                let part = u128::from(whole) * u128::from(share.min(WHOLE)) / u128::from(WHOLE);
                u64::try_from(part).unwrap_or(whole)
            }
            Self::Bytes(bytes) => bytes,
        }
    }
}

impl FromStr for Amount {
    type Err = ParseAmountError;

    fn from_str(text: &str) -> Result<Self, ParseAmountError> {
        let error = || ParseAmountError(text.to_owned());
        let Some(percentage) = text.strip_suffix('%') else {
            let bytes = parse_bytes(&Quantity(text.to_owned())).ok().filter(|bytes| *bytes > 0);
            return bytes.map(Self::Bytes).ok_or_else(error);
        };
        let (whole, fraction) = percentage.split_once('.').unwrap_or((percentage, ""));
        let is_digits = |digits: &str| digits.bytes().all(|digit| digit.is_ascii_digit());
        if whole.is_empty() || !is_digits(whole) || !is_digits(fraction) {
            return Err(error());
        }
        // Less than a hundredth of a percent is cut off
        let hundredths: String = fraction.chars().chain("00".chars()).take(2).collect();
        let share = format!("{whole}{hundredths}").parse().ok().filter(|share| *share <= WHOLE);
        share.map(Self::Share).ok_or_else(error)
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Share(share) if share % 100 == 0 => write!(f, "{}%", share / 100),
            Self::Share(share) => write!(f, "{}.{:02}%", share / 100, share % 100),
            Self::Bytes(bytes) => write!(f, "{bytes}"),
        }
    }
}

/// The free space and inodes below which an agent reports that a volume is too small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrowthThresholds {
    /// Free space.
    pub space: Amount,
    /// Free inodes.
    pub inodes: Amount,
}

/// The annotation of a LogicalVolume is none that a controller writes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} has no free space and inodes")]
pub struct ParseThresholdsError(String);

impl FromStr for GrowthThresholds {
    type Err = ParseThresholdsError;

    fn from_str(text: &str) -> Result<Self, ParseThresholdsError> {
        let parse = || {
            let (space, inodes) = text.split_once(',')?;
            let space = space.strip_prefix("space=")?.parse().ok()?;
            Some(Self { space, inodes: inodes.strip_prefix("inodes=")?.parse().ok()? })
        };
        parse().ok_or_else(|| ParseThresholdsError(text.to_owned()))
    }
}

impl fmt::Display for GrowthThresholds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "space={},inodes={}", self.space, self.inodes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("10%", Amount::Share(1000), 10)]
    #[case("12.5%", Amount::Share(1250), 12)]
    #[case("0.019%", Amount::Share(1), 0)]
    #[case("100%", Amount::Share(10_000), 100)]
    #[case("5Gi", Amount::Bytes(5 << 30), 5 << 30)]
    fn amounts_are_percentages_or_sizes(#[case] text: &str, #[case] expected: Amount, #[case] of_hundred: u64) {
        let amount: Amount = text.parse().unwrap();
        assert_eq!((amount, amount.of(100)), (expected, of_hundred));
    }

    #[rstest]
    fn what_is_no_amount_is_refused(
        #[values("", "%", "101%", "-1%", "1e1%", ".5%", "ten", "0", "-1Gi", "99999999999%")] text: &str,
    ) {
        assert_eq!(text.parse::<Amount>(), Err(ParseAmountError(text.to_owned())));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(share in 0_u32..=10_000, bytes in 1..u64::MAX >> 1) {
            let thresholds = GrowthThresholds { space: Amount::Bytes(bytes), inodes: Amount::Share(share) };
            prop_assert_eq!(thresholds.to_string().parse(), Ok(thresholds));
        }

        #[test]
        fn a_share_is_no_more_than_the_whole(share in 0_u32..=10_000, whole in any::<u64>()) {
            prop_assert!(Amount::Share(share).of(whole) <= whole);
        }
    }
}
