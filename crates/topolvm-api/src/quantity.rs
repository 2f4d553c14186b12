//! Kubernetes quantities as whole bytes.
//!
//! Written here because the published crate truncates fractions before it scales them (`1.5Gi` becomes 1 GiB). The
//! grammar is that of Kubernetes' `resource.Quantity`: a decimal number and a binary (`Ki`…`Ei`), decimal (`n`…`E`) or
//! exponent (`e3`, `E3`) suffix.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Error of a quantity that is not a number of bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseQuantityError {
    /// Not in the grammar of quantities.
    #[error("{0:?} is not a quantity; write a number of bytes such as 1Gi, 500M or 4096")]
    Syntax(String),
    /// A size cannot be below zero.
    #[error("{0:?} is negative; a size is at least 0")]
    Negative(String),
}

/// Parses a quantity as bytes, rounded up to a whole byte and limited to `i64::MAX`, the limit of Kubernetes itself.
pub fn parse_bytes(quantity: &Quantity) -> Result<u64, ParseQuantityError> {
    let text = quantity.0.as_str();
    let syntax = || ParseQuantityError::Syntax(text.to_owned());

    let (negative, unsigned) = match text.as_bytes().first() {
        Some(b'-') => (true, text.get(1..).unwrap_or_default()),
        Some(b'+') => (false, text.get(1..).unwrap_or_default()),
        _ => (false, text),
    };
    let number_len = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(number_len);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(syntax());
    }
    let scale = Scale::of(suffix).ok_or_else(syntax)?;
    let bytes = scale.apply(whole, fraction);
    if negative && bytes > 0 { Err(ParseQuantityError::Negative(text.to_owned())) } else { Ok(bytes) }
}

/// Formats bytes in canonical binary form: the largest suffix that divides them exactly (`1Gi`), else plain bytes.
pub fn format_bytes(bytes: u64) -> Quantity {
    const SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let mut value = bytes;
    let mut suffix = 0;
    while value != 0 && value.is_multiple_of(1024) && suffix + 1 < SUFFIXES.len() {
        value /= 1024;
        suffix += 1;
    }
    Quantity(format!("{value}{}", SUFFIXES.get(suffix).copied().unwrap_or_default()))
}

/// The largest size that Kubernetes can express.
const LIMIT: u64 = i64::MAX.unsigned_abs();

/// Multiplier of a suffix.
#[derive(Clone, Copy)]
enum Scale {
    /// 1024 to this power.
    Binary(u32),
    /// 10 to this power.
    Decimal(i32),
}

impl Scale {
    fn of(suffix: &str) -> Option<Self> {
        Some(match suffix {
            "" => Self::Decimal(0),
            "Ki" => Self::Binary(1),
            "Mi" => Self::Binary(2),
            "Gi" => Self::Binary(3),
            "Ti" => Self::Binary(4),
            "Pi" => Self::Binary(5),
            "Ei" => Self::Binary(6),
            "n" => Self::Decimal(-9),
            "u" => Self::Decimal(-6),
            "m" => Self::Decimal(-3),
            "k" => Self::Decimal(3),
            "M" => Self::Decimal(6),
            "G" => Self::Decimal(9),
            "T" => Self::Decimal(12),
            "P" => Self::Decimal(15),
            "E" => Self::Decimal(18),
            exponent => Self::Decimal(exponent.strip_prefix(['e', 'E'])?.parse().ok()?),
        })
    }

    /// `whole.fraction` times the scale, rounded up; exact for every number of digits, because the digits are shifted
    /// and never go through a float.
    fn apply(self, whole: &str, fraction: &str) -> u64 {
        match self {
            Self::Decimal(power) => shift(whole, fraction, i64::from(power)),
            Self::Binary(power) => {
                let unit = 1_u64 << (10 * power);
                let from_whole = u128::from(shift(whole, "", 0)).saturating_mul(u128::from(unit));
                let total = from_whole.saturating_add(ceil_of_fraction(fraction, unit));
                u64::try_from(total).map_or(LIMIT, |bytes| bytes.min(LIMIT))
            }
        }
    }
}

/// `0.fraction` of `unit`, rounded up. Digits past the 18th can only decide whether to round up.
fn ceil_of_fraction(fraction: &str, unit: u64) -> u128 {
    let (head, tail) = fraction.split_at(fraction.len().min(18));
    if head.is_empty() {
        return 0;
    }
    let numerator: u128 = head.parse().unwrap_or(0);
    let denominator = 10_u128.pow(u32::try_from(head.len()).unwrap_or(18));
    let product = numerator * u128::from(unit);
    let lost = !product.is_multiple_of(denominator) || tail.bytes().any(|digit| digit != b'0');
    product / denominator + u128::from(lost)
}

/// Moves the decimal point `power` places to the right and rounds what is behind it up.
fn shift(whole: &str, fraction: &str, power: i64) -> u64 {
    let digits: Vec<u8> = whole.bytes().chain(fraction.bytes()).collect();
    let point = i64::try_from(whole.len()).unwrap_or(i64::MAX).saturating_add(power);
    let kept = usize::try_from(point.max(0)).unwrap_or(usize::MAX);
    let mut value: u64 = 0;
    for &digit in digits.iter().take(kept) {
        value = value.saturating_mul(10).saturating_add(u64::from(digit - b'0'));
    }
    if value > 0 {
        for _ in digits.len()..kept {
            value = value.saturating_mul(10);
            if value >= LIMIT {
                break;
            }
        }
    }
    let rest_is_zero = digits.iter().skip(kept).all(|&digit| digit == b'0');
    value.saturating_add(u64::from(!rest_is_zero)).min(LIMIT)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn parse(text: &str) -> Result<u64, ParseQuantityError> {
        parse_bytes(&Quantity(text.to_owned()))
    }

    #[rstest]
    #[case("0", 0)]
    #[case("1", 1)]
    #[case("+7", 7)]
    #[case("-0", 0)]
    #[case("1Ki", 1024)]
    #[case("1.5Gi", 1_610_612_736)]
    #[case("0.1Gi", 107_374_183)]
    #[case(".5Ki", 512)]
    #[case("1.Ki", 1024)]
    #[case("500M", 500_000_000)]
    #[case("100m", 1)]
    #[case("1500m", 2)]
    #[case("1n", 1)]
    #[case("0n", 0)]
    #[case("1E", 1_000_000_000_000_000_000)]
    #[case("1e3", 1000)]
    #[case("1.5e3", 1500)]
    #[case("15E-1", 2)]
    #[case("7Ei", 8_070_450_532_247_928_832)]
    #[case("8Ei", 9_223_372_036_854_775_807)]
    #[case("9223372036854775807", 9_223_372_036_854_775_807)]
    #[case("99999999999999999999999", 9_223_372_036_854_775_807)]
    #[case("0.0000000000000000000000001Gi", 1)]
    fn quantities_are_bytes_rounded_up(#[case] text: &str, #[case] bytes: u64) {
        assert_eq!(parse(text), Ok(bytes));
    }

    #[rstest]
    #[case("")]
    #[case("Gi")]
    #[case(".")]
    #[case("1.2.3")]
    #[case("1 Gi")]
    #[case("1gi")]
    #[case("1e")]
    #[case("1e99999999999")]
    #[case("--1")]
    #[case("१")]
    fn anything_else_is_a_syntax_error(#[case] text: &str) {
        assert_eq!(parse(text), Err(ParseQuantityError::Syntax(text.to_owned())));
    }

    #[test]
    fn negative_sizes_are_refused() {
        assert_eq!(parse("-1Gi"), Err(ParseQuantityError::Negative("-1Gi".to_owned())));
    }

    #[rstest]
    #[case(0, "0")]
    #[case(1023, "1023")]
    #[case(1 << 30, "1Gi")]
    #[case(1059 << 20, "1059Mi")]
    #[case(1_084_419 * 1024, "1084419Ki")]
    fn sizes_are_written_with_the_largest_exact_suffix(#[case] bytes: u64, #[case] text: &str) {
        assert_eq!(format_bytes(bytes), Quantity(text.to_owned()));
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(bytes in 0..=LIMIT) {
            prop_assert_eq!(parse_bytes(&format_bytes(bytes)), Ok(bytes));
        }

        #[test]
        fn a_decimal_fraction_is_never_rounded_down(whole in 0_u64..1000, thousandths in 0_u64..1000) {
            let bytes = parse(&format!("{whole}.{thousandths:03}Mi")).unwrap();
            let exact_times_1000 = (whole * 1000 + thousandths) * (1 << 20);
            prop_assert_eq!(bytes, exact_times_1000.div_ceil(1000));
        }

        #[test]
        fn no_input_panics(text in "\\PC{0,24}") {
            drop(parse(&text));
        }
    }
}
