//! Sizes in bytes, parsed as people write them: `768M`, `4G`.

use anyhow::{Context, Result, bail};

/// One mebibyte, in bytes.
pub const MIB: u64 = 1 << 20;
/// One gibibyte, in bytes.
pub const GIB: u64 = 1 << 30;

/// Parses a number of bytes with an optional binary suffix K, M, G or T.
pub fn parse(text: &str) -> Result<u64> {
    let (number, shift) = match text.trim_end_matches(|c: char| c.is_ascii_alphabetic()) {
        number if number.len() == text.len() => (number, 0),
        number => match text.get(number.len()..) {
            Some("K" | "k") => (number, 10),
            Some("M" | "m") => (number, 20),
            Some("G" | "g") => (number, 30),
            Some("T" | "t") => (number, 40),
            _ => bail!("{text:?} is no size: write for example 768M or 4G"),
        },
    };
    let number: u64 = number.parse().with_context(|| format!("{text:?} is no size: write for example 768M or 4G"))?;
    number.checked_mul(1 << shift).with_context(|| format!("{text} is too big"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes_are_binary() {
        assert_eq!(parse("4096").unwrap(), 4096);
        assert_eq!(parse("768M").unwrap(), 768 * MIB);
        assert_eq!(parse("4G").unwrap(), 4 * GIB);
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "G", "1.5G", "4GB", "-1M", "99999999999T"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
