//! The overprovision ratio: the virtual capacity of a thin pool as a multiple of its size, in exact decimal arithmetic.

use std::fmt;
use std::str::FromStr;

/// Ratios are kept in millionths, so that sizes are computed in whole numbers and come out the same everywhere.
const ONE: u64 = 1_000_000;
/// Digits after the point that count.
const DIGITS: usize = 6;

/// `overprovision-ratio`: 1 or more, to six digits after the point; further digits are cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverprovisionRatio {
    millionths: u64,
}

/// The errors of an invalid overprovision ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidRatio {
    /// Not a decimal number, or one without end.
    #[error("it is not a decimal number")]
    NoNumber,
    /// The virtual capacity of the pool would be smaller than the pool.
    #[error("it is less than 1.0, so part of the pool could not be used")]
    TooSmall,
}

impl OverprovisionRatio {
    /// Returns the virtual capacity of a pool of this size, in bytes, rounded down to whole bytes.
    pub fn apply(self, bytes: u64) -> u64 {
        let virtual_bytes = u128::from(bytes) * u128::from(self.millionths) / u128::from(ONE);
        u64::try_from(virtual_bytes).unwrap_or(u64::MAX)
    }
}

impl FromStr for OverprovisionRatio {
    type Err = InvalidRatio;

    fn from_str(text: &str) -> Result<Self, InvalidRatio> {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        if whole.starts_with('-') && whole.len() > 1 {
            return Err(InvalidRatio::TooSmall);
        }
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(fraction) {
            return Err(InvalidRatio::NoNumber);
        }
        let fraction: String = fraction.chars().chain("0".repeat(DIGITS).chars()).take(DIGITS).collect();
        let number = |part: &str| part.parse::<u64>().map_err(|_| InvalidRatio::NoNumber);
        let millionths = number(whole)?.checked_mul(ONE).and_then(|whole| whole.checked_add(number(&fraction).ok()?));
        match millionths.ok_or(InvalidRatio::NoNumber)? {
            ..ONE => Err(InvalidRatio::TooSmall),
            millionths => Ok(Self { millionths }),
        }
    }
}

impl fmt::Display for OverprovisionRatio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fraction = format!("{:06}", self.millionths % ONE);
        let fraction = fraction.trim_end_matches('0');
        write!(f, "{}.{}", self.millionths / ONE, if fraction.is_empty() { "0" } else { fraction })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const GIB: u64 = 1 << 30;

    #[rstest]
    #[case("1", 10 * GIB, 10 * GIB)]
    #[case("1.0", 10 * GIB, 10 * GIB)]
    #[case("1.5", 10 * GIB, 15 * GIB)]
    #[case("10", 4 << 20, 40 << 20)]
    // In floating point these are 1.1 * 100 = 110.00000000000001 and 4.35 * 100 = 434.99999999999994.
    #[case("1.1", 100, 110)]
    #[case("4.35", 100, 435)]
    #[case("1.0000019", 1_000_000, 1_000_001)]
    #[case("2", u64::MAX, u64::MAX)]
    fn ratio_is_applied_exactly(#[case] ratio: &str, #[case] pool: u64, #[case] virtual_bytes: u64) {
        assert_eq!(ratio.parse::<OverprovisionRatio>().unwrap().apply(pool), virtual_bytes);
    }

    #[rstest]
    #[case("0.999999", InvalidRatio::TooSmall)]
    #[case("0", InvalidRatio::TooSmall)]
    #[case("-1", InvalidRatio::TooSmall)]
    #[case("", InvalidRatio::NoNumber)]
    #[case("NaN", InvalidRatio::NoNumber)]
    #[case("inf", InvalidRatio::NoNumber)]
    #[case("1e3", InvalidRatio::NoNumber)]
    #[case("99999999999999999999", InvalidRatio::NoNumber)]
    fn an_invalid_ratio_is_refused(#[case] ratio: &str, #[case] expected: InvalidRatio) {
        assert_eq!(ratio.parse::<OverprovisionRatio>(), Err(expected));
    }

    #[rstest]
    #[case("1", "1.0")]
    #[case("2.50", "2.5")]
    #[case("1.000001", "1.000001")]
    fn a_ratio_is_printed_without_trailing_zeros(#[case] ratio: &str, #[case] text: &str) {
        assert_eq!(ratio.parse::<OverprovisionRatio>().unwrap().to_string(), text);
    }
}
