//! Formats sizes for people.

/// Formats bytes as `1.5Gi`: three significant digits, in the largest unit of which there is at least one.
pub fn human(bytes: u64) -> String {
    const UNITS: [(&str, u32); 6] = [("Ei", 60), ("Pi", 50), ("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)];
    let Some((unit, shift)) = UNITS.into_iter().find(|&(_, shift)| bytes >> shift > 0) else {
        return bytes.to_string();
    };
    // Rounded down, so that free space never appears larger than it is
    let tenths = (u128::from(bytes) * 10) >> shift;
    match (tenths / 10, tenths % 10) {
        (whole, 0) => format!("{whole}{unit}"),
        (whole, _) if whole >= 100 => format!("{whole}{unit}"),
        (whole, tenth) => format!("{whole}.{tenth}{unit}"),
    }
}

/// Returns the part in percent of the whole, rounded down; none if the whole is 0.
pub fn percent(part: u64, whole: u64) -> Option<u64> {
    let hundredths = (u128::from(part) * 100).checked_div(u128::from(whole))?;
    u64::try_from(hundredths).ok()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(0, "0")]
    #[case(1023, "1023")]
    #[case(1 << 30, "1Gi")]
    #[case((1 << 30) + (1 << 29), "1.5Gi")]
    #[case((1 << 30) - 1, "1023Mi")]
    #[case(u64::MAX, "15.9Ei")]
    fn sizes_are_short_and_rounded_down(#[case] bytes: u64, #[case] expected: &str) {
        assert_eq!(human(bytes), expected);
    }

    #[test]
    fn of_nothing_there_is_no_part() {
        assert_eq!((percent(1, 0), percent(1, 3), percent(u64::MAX, u64::MAX)), (None, Some(33), Some(100)));
    }
}
