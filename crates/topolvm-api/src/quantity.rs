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
    #[error("{0:?} is not a quantity; use a number of bytes such as 1Gi, 500M or 4096")]
    Syntax(String),
    /// A size cannot be below zero.
    #[error("{0:?} is negative; a size is at least 0")]
    Negative(String),
}

/// Parses a quantity as bytes, rounded up to a whole byte and limited to `i64::MAX`, the limit of Kubernetes itself.
pub fn parse_bytes(quantity: &Quantity) -> Result<u64, ParseQuantityError> {
    let text = quantity.0.as_str();
    let syntax = || ParseQuantityError::Syntax(text.to_owned());

    let (negative, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let number_len = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(number_len);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(syntax());
    }
    let (unit, power) = parse_suffix(suffix).ok_or_else(syntax)?;
    let power = power.saturating_sub(i64::try_from(fraction.len()).unwrap_or(i64::MAX));
    let bytes = ceil_scaled(&format!("{whole}{fraction}"), unit, power);
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

/// Returns the multiplier of a suffix: a number, and a power of ten.
fn parse_suffix(suffix: &str) -> Option<(u64, i64)> {
    Some(match suffix {
        "" => (1, 0),
        "Ki" => (1 << 10, 0),
        "Mi" => (1 << 20, 0),
        "Gi" => (1 << 30, 0),
        "Ti" => (1 << 40, 0),
        "Pi" => (1 << 50, 0),
        "Ei" => (1 << 60, 0),
        "n" => (1, -9),
        "u" => (1, -6),
        "m" => (1, -3),
        "k" => (1, 3),
        "M" => (1, 6),
        "G" => (1, 9),
        "T" => (1, 12),
        "P" => (1, 15),
        "E" => (1, 18),
        exponent => (1, exponent.strip_prefix(['e', 'E'])?.parse::<i32>().ok()?.into()),
    })
}

/// Returns `digits` times `unit` times ten to this power, rounded up and limited to [`LIMIT`]. Nothing goes through a
/// float.
fn ceil_scaled(digits: &str, unit: u64, power: i64) -> u64 {
    /// As many as fit in the product with the largest unit.
    const MOST_DIGITS: usize = 20;
    let digits = digits.trim_start_matches('0');
    let (head, tail) = digits.split_at(digits.len().min(MOST_DIGITS));
    let number = head.parse::<u128>().unwrap_or(0);
    // Digits that are left out count as one more in the last place
    let number = number + u128::from(tail.bytes().any(|digit| digit != b'0'));
    let product = number * u128::from(unit);
    let power = power.saturating_add(i64::try_from(tail.len()).unwrap_or(i64::MAX));
    let factor = 10_u128.saturating_pow(u32::try_from(power.unsigned_abs()).unwrap_or(u32::MAX));
    let bytes = if power < 0 { product.div_ceil(factor) } else { product.saturating_mul(factor) };
    u64::try_from(bytes).map_or(LIMIT, |bytes| bytes.min(LIMIT))
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
