//! The mounts and swap space of a machine.

use std::fs;
use std::io;
use std::path::Path;

use crate::Number;

/// A line of `/proc/PID/mountinfo` (proc_pid_mountinfo(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mount {
    /// Number of the device of the filesystem; of btrfs it is none of a block device.
    pub(crate) number: Option<Number>,
    /// Directory of the filesystem that is mounted.
    pub(crate) root: String,
    /// Directory at which it is mounted.
    pub(crate) directory: String,
    /// Type of the filesystem.
    pub(crate) filesystem: String,
    /// Source of the filesystem, a device file most often.
    pub(crate) source: String,
}

/// Reads the mounts of the machine's first process.
pub(crate) fn read_mounts(root: &Path) -> io::Result<Vec<Mount>> {
    let text = fs::read_to_string(root.join("proc/1/mountinfo"))
        .or_else(|_| fs::read_to_string(root.join("proc/self/mountinfo")))?;
    Ok(text.lines().filter_map(parse_mount).collect())
}

/// Reads the device files that the machine swaps to.
pub(crate) fn read_swaps(root: &Path) -> io::Result<Vec<String>> {
    let text = fs::read_to_string(root.join("proc/swaps"))?;
    let path = |line: &str| line.split_whitespace().next().map(unescape);
    Ok(text.lines().skip(1).filter_map(path).collect())
}

fn parse_mount(line: &str) -> Option<Mount> {
    let (before, after) = line.split_once(" - ")?;
    let before: Vec<_> = before.split(' ').collect();
    let mut after = after.split(' ');
    Some(Mount {
        number: before.get(2).and_then(|number| parse_number(number)),
        root: unescape(before.get(3)?),
        directory: unescape(before.get(4)?),
        filesystem: after.next()?.to_owned(),
        source: unescape(after.next()?),
    })
}

/// Parses a number such as `8:16`.
pub(crate) fn parse_number(text: &str) -> Option<Number> {
    let (major, minor) = text.trim().split_once(':')?;
    Some(Number { major: major.parse().ok()?, minor: minor.parse().ok()? })
}

/// Returns the text with the blanks that the kernel writes as `\040`.
fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut result = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|code| u8::from_str_radix(code, 8).ok());
        if let (Some(code), Some(rest)) = (code, part.get(3..)) {
            result.push(char::from(code));
            result.push_str(rest);
        } else {
            result.push('\\');
            result.push_str(part);
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo_is_understood() {
        let line =
            "36 35 98:16 /a /mnt/with\\040blank rw,noatime shared:1 master:2 - ext3 /dev/root rw,errors=continue";
        let expected = Mount {
            number: Some(Number { major: 98, minor: 16 }),
            root: "/a".to_owned(),
            directory: "/mnt/with blank".to_owned(),
            filesystem: "ext3".to_owned(),
            source: "/dev/root".to_owned(),
        };
        assert_eq!(parse_mount(line), Some(expected));
        assert_eq!(parse_mount("36 35 98:16 / /mnt rw"), None);
    }

    #[test]
    fn what_is_no_escape_stays() {
        assert_eq!(unescape("a\\134b\\x"), "a\\b\\x");
    }
}
