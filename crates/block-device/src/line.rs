//! Files of sysfs with one line.

use std::fs;
use std::path::Path;

/// Reads a file of one line; `None` if there is none or it is blank.
pub(crate) fn read_text(file: &Path) -> Option<String> {
    let text = fs::read(file).ok()?;
    let text = String::from_utf8_lossy(&text);
    let text = text.trim_matches(|character: char| character.is_whitespace() || character == '\0');
    (!text.is_empty()).then(|| text.to_owned())
}

/// Reads a file with a number; `None` if there is none.
pub(crate) fn read_number(file: &Path) -> Option<u64> {
    read_text(file)?.parse().ok()
}
