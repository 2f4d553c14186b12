//! The kernel's mount table.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use procfs::process::{MountInfo, Process};

use super::{DeviceNumber, Error, Mount};

/// What is mounted at exactly this path, the lowest layer first.
///
/// Only the parent directory is resolved: the path itself may be a mount whose filesystem has failed, and then every
/// look at it gives an error.
pub(super) fn mounts_at(target: &Path) -> Result<Vec<Mount>, Error> {
    let target = match (target.parent(), target.file_name()) {
        (Some(parent), Some(name)) => match std::fs::canonicalize(parent) {
            Ok(parent) => parent.join(name),
            // Nothing can be mounted below a directory that is not there
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::io("resolve", parent, error)),
        },
        _ => target.to_owned(),
    };
    let table = Process::myself().and_then(|process| process.mountinfo()).map_err(Error::Table)?;
    Ok(table.0.iter().filter(|info| unescape(&info.mount_point) == target).filter_map(mount).collect())
}

fn mount(info: &MountInfo) -> Option<Mount> {
    let (major, minor) = info.majmin.split_once(':')?;
    Some(Mount {
        device: DeviceNumber { major: major.parse().ok()?, minor: minor.parse().ok()? },
        filesystem: info.fs_type.clone(),
        readonly: info.mount_options.contains_key("ro"),
    })
}

/// The kernel writes space, tab, newline and backslash as octal numbers.
fn unescape(path: &Path) -> PathBuf {
    use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
    let mut plain = Vec::new();
    let mut rest = path.as_os_str().as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let code = after
            .get(..3)
            .filter(|_| byte == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        plain.push(code.unwrap_or(byte));
        rest = code.and_then(|_| after.get(3..)).unwrap_or(after);
    }
    PathBuf::from(OsString::from_vec(plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_table_is_read() {
        let line = "36 35 253:3 / /var/lib/kubelet/a\\040b ro,noatime master:1 - ext4 /dev/vg/lv rw,errors=continue";
        let info = MountInfo::from_line(line).unwrap();
        assert_eq!(
            mount(&info).unwrap(),
            Mount { device: DeviceNumber { major: 253, minor: 3 }, filesystem: "ext4".to_owned(), readonly: true }
        );
        assert_eq!(unescape(&info.mount_point), Path::new("/var/lib/kubelet/a b"));
    }

    #[test]
    fn octal_numbers_are_characters_and_other_backslashes_stay() {
        assert_eq!(unescape(Path::new(r"/a\134b\011c\9z\")), Path::new("/a\\b\tc\\9z\\"));
    }

    #[test]
    fn the_root_is_mounted_and_a_fresh_directory_is_not() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!mounts_at(Path::new("/")).unwrap().is_empty());
        assert_eq!(mounts_at(dir.path()).unwrap(), []);
        assert_eq!(mounts_at(&dir.path().join("no/such")).unwrap(), []);
    }
}
