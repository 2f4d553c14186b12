//! The values that options of `lvcreate` may have, as lvcreate(8) lists them and LVM 2.03 parses them.

/// Options that are on or off.
const ON_OR_OFF: [&str; 8] = [
    "autobackup",
    "contiguous",
    "monitor",
    "persistent",
    "raidintegrity",
    "setactivationskip",
    "setautoactivation",
    "zero",
];
/// Options with a size or a number.
const NUMBERS: [&str; 6] = ["major", "maxrecoveryrate", "minor", "minrecoveryrate", "regionsize", "stripesize"];

/// Returns the values that an option may have, if LVM is certain to refuse this one.
pub(super) fn expected_instead_of(name: &str, value: &str) -> Option<&'static str> {
    let is_number = value.trim_start().starts_with(|first: char| first.is_ascii_digit());
    let (is_possible, expected) = match name {
        _ if ON_OR_OFF.contains(&name) => (matches!(value, "y" | "n"), "y or n"),
        _ if NUMBERS.contains(&name) => (is_number, "a number"),
        "permission" => (matches!(value, "r" | "rw" | "wr"), "r or rw"),
        "readahead" => (is_number || matches!(value, "auto" | "none"), "auto, none or a number of sectors"),
        _ => return None,
    };
    (!is_possible).then_some(expected)
}
