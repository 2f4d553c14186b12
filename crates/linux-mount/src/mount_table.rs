//! The mount table of this process, proc_pid_mountinfo(5).

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use procfs::process::MountInfo;

use super::device::{self, PathKind};
use super::{DeviceNumber, MountError};
use crate::Filesystem;

/// Path of the mount table.
const TABLE: &str = "/proc/self/mountinfo";
/// Place of the path in a line, from 0.
const MOUNT_POINT: usize = 4;
const BTRFS: &str = "btrfs";

/// A mount at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Device of the mounted filesystem. For a bind mount of a device node that is not the device itself, but the
    /// filesystem on which the node lies.
    pub device: DeviceNumber,
    /// Type of the mounted filesystem.
    pub filesystem: String,
    /// True when it was mounted read-only.
    pub readonly: bool,
    /// True when the filesystem itself takes no writes any more. Where `readonly` is false, the kernel has stopped it
    /// after an error.
    pub filesystem_readonly: bool,
}

/// Lists the mounts at exactly this path, the lowest layer first.
pub(crate) fn mounts_at(target: &Path) -> Result<Vec<Mount>, MountError> {
    // Nothing can be mounted below a missing directory
    let Some(target) = resolve_parent(target)? else { return Ok(Vec::new()) };
    let table = read_table()?;
    let mounts = parse_lines_at(&table, &target).map(|info| info.map(|info| parse_mount(&info)));
    mounts.filter_map(Result::transpose).collect()
}

/// Finds the paths other than `target` where the root of a device's filesystem is mounted, or the device's node is
/// bound to. Mounts of single directories of the filesystem, as kubelet makes them for `subPath`, are left out.
pub(crate) fn find_other_targets(device: DeviceNumber, target: &Path) -> Result<Vec<PathBuf>, MountError> {
    let target = resolve_parent(target)?;
    let mut targets = find_targets(device)?;
    targets.retain(|path| Some(path) != target.as_ref());
    Ok(targets)
}

/// Finds the paths where the root of a device's filesystem is mounted, or the device's node is bound to.
pub(crate) fn find_targets(device: DeviceNumber) -> Result<Vec<PathBuf>, MountError> {
    let is_target = |info: &MountInfo| {
        if is_device_node_filesystem(info) {
            // stat(2) of a device's node does not touch the device
            info.root != "/" && read_device_number(&unescape_path(&info.mount_point)) == Some(device)
        } else {
            is_filesystem_root(info) && parse_mount(info).is_some_and(|mount| mount.device == device)
        }
    };
    Ok(read_mount_table()?.into_iter().filter(is_target).map(|info| unescape_path(&info.mount_point)).collect())
}

/// Finds the paths where a device's filesystem, or a directory of it, is mounted for a process: `self` or its id.
pub(crate) fn find_all_targets(process: &Path, device: DeviceNumber) -> Result<Vec<PathBuf>, MountError> {
    let path = Path::new("/proc").join(process).join("mountinfo");
    let table = std::fs::read(&path).map_err(|error| MountError::io("read", &path, error))?;
    let mut targets = Vec::new();
    for info in parse_lines(&table) {
        let info = info?;
        // A bound node of a device does not keep the device
        if !is_device_node_filesystem(&info) && parse_mount(&info).is_some_and(|mount| mount.device == device) {
            targets.push(unescape_path(&info.mount_point));
        }
    }
    Ok(targets)
}

/// Lists the devices whose filesystem is mounted, each with one of the paths at which its root is.
pub(crate) fn list_mounted_devices() -> Result<HashMap<DeviceNumber, PathBuf>, MountError> {
    let table = read_table()?;
    // One line at a time, because a node with many pods has thousands
    let lines = parse_lines(&table).filter(|info| info.as_ref().map_or(true, is_of_volume));
    let device = |info: MountInfo| Some((parse_mount(&info)?.device, unescape_path(&info.mount_point)));
    lines.filter_map(|info| info.map(device).transpose()).collect()
}

/// Lists the paths at which something is mounted.
pub(crate) fn list_mount_points() -> Result<HashSet<PathBuf>, MountError> {
    let table = read_table()?;
    parse_lines(&table).map(|info| info.map(|info| unescape_path(&info.mount_point))).collect()
}

/// Returns whether a mount shows the root of a filesystem that a volume can have.
fn is_of_volume(info: &MountInfo) -> bool {
    Filesystem::parse(&info.fs_type).is_ok() && is_filesystem_root(info)
}

/// Resolves links in a path as the mount table shows it; `None` if its parent directory does not exist.
///
/// Only the parent directory is accessed: the path itself may be a mount whose filesystem has failed, and then every
/// access to it gives an error.
fn resolve_parent(target: &Path) -> Result<Option<PathBuf>, MountError> {
    let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else { return Ok(Some(target.to_owned())) };
    match std::fs::canonicalize(parent) {
        Ok(parent) => Ok(Some(parent.join(name))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(MountError::io("resolve", parent, error)),
    }
}

/// Reads and parses the mount table.
fn read_mount_table() -> Result<Vec<MountInfo>, MountError> {
    parse_lines(&read_table()?).collect()
}

fn read_table() -> Result<Vec<u8>, MountError> {
    std::fs::read(TABLE).map_err(|error| MountError::io("read", Path::new(TABLE), error))
}

/// Parses the lines of the mount table that show a mount at exactly this path, and those that show no path. Of 1,000
/// lines, which 200 pods have, that takes an eighth of the time that it takes to parse all (0.8 and 7 ms), and the
/// kubelet measures each volume every minute.
fn parse_lines_at<'a>(
    table: &'a [u8],
    target: &'a Path,
) -> impl Iterator<Item = Result<MountInfo, MountError>> + use<'a> {
    let lines = table.split_inclusive(|&byte| byte == b'\n');
    let mount_point = |line: &'a [u8]| line.split(|&byte| byte == b' ').nth(MOUNT_POINT);
    let is_at_target = move |path: &[u8]| {
        path == target.as_os_str().as_bytes()
            || path.contains(&b'\\') && unescape_path(Path::new(OsStr::from_bytes(path))) == target
    };
    lines.filter(move |line| mount_point(line).is_none_or(is_at_target)).flat_map(parse_lines)
}

/// Parses the lines of the mount table.
pub(crate) fn parse_lines(table: &[u8]) -> impl Iterator<Item = Result<MountInfo, MountError>> {
    // A path that is no UTF-8 is not kubelet's, and must not hide the others
    let lines = table.split(|&byte| byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok());
    lines.filter(|line| !line.is_empty()).map(|line| MountInfo::from_line(line).map_err(MountError::Table))
}

/// Returns whether the filesystem of a mount is one in which device nodes lie.
fn is_device_node_filesystem(info: &MountInfo) -> bool {
    matches!(info.fs_type.as_str(), "devtmpfs" | "tmpfs")
}

/// Returns whether the root directory of a filesystem is mounted. btrfs shows the path of the mounted subvolume,
/// which is the top one unless `subvol` was asked for.
fn is_filesystem_root(info: &MountInfo) -> bool {
    info.root == "/"
        || info.fs_type == BTRFS
            && info.super_options.get("subvol").is_some_and(|subvolume| subvolume.as_deref() == Some(&info.root))
}

/// Parses a line of the mount table.
fn parse_mount(info: &MountInfo) -> Option<Mount> {
    let (major, minor) = info.majmin.split_once(':')?;
    let number = DeviceNumber { major: major.parse().ok()?, minor: minor.parse().ok()? };
    // A btrfs can have several devices, so its mounts have a separate number, and the path of one of its devices
    let source = info.mount_source.as_deref().filter(|_| info.fs_type == BTRFS);
    let device = source.and_then(|source| read_device_number(&unescape_path(Path::new(source)))).unwrap_or(number);
    // A filesystem that has shut itself down reports it as an option (ext4) or answers every access with an error (xfs,
    // btrfs)
    let is_stopped = ["ro", "emergency_ro", "shutdown"].iter().any(|&option| info.super_options.contains_key(option));
    Some(Mount {
        device,
        filesystem: info.fs_type.clone(),
        readonly: info.mount_options.contains_key("ro"),
        filesystem_readonly: is_stopped,
    })
}

/// Reads the number of the device whose node is at a path.
fn read_device_number(path: &Path) -> Option<DeviceNumber> {
    match device::inspect_path(path) {
        Ok(PathKind::BlockDevice(number)) => Some(number),
        Ok(PathKind::Absent | PathKind::Directory | PathKind::Other) | Err(_) => None,
    }
}

/// Replaces octal escapes: the kernel writes space, tab, newline and backslash as octal numbers.
pub(crate) fn unescape_path(path: &Path) -> PathBuf {
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
            parse_mount(&info).unwrap(),
            Mount {
                device: DeviceNumber { major: 253, minor: 3 },
                filesystem: "ext4".to_owned(),
                readonly: true,
                filesystem_readonly: false
            }
        );
        assert_eq!(unescape_path(&info.mount_point), Path::new("/var/lib/kubelet/a b"));
    }

    #[test]
    fn a_path_that_is_no_text_hides_no_other() {
        let ours = "36 35 253:3 / /mnt/a rw - ext4 /dev/vg/lv rw\n";
        let table = [b"35 1 0:5 / /mnt/\xff rw - tmpfs none rw\n".as_slice(), ours.as_bytes()].concat();
        let paths: Vec<_> = parse_lines(&table).map(|info| info.unwrap().mount_point).collect();
        assert_eq!(paths, [Path::new("/mnt/a")]);
        let nonsense: Vec<_> = parse_lines(b"nonsense").collect();
        assert!(matches!(&nonsense[..], [Err(_)]), "{nonsense:?}");
    }

    #[test]
    fn lines_at_a_path_are_those_of_its_mounts_alone() {
        let table = b"35 1 0:5 / /mnt/a rw - tmpfs none rw\n\
            36 35 253:3 / /mnt/a rw - ext4 /dev/vg/lv rw\n\
            37 35 253:4 / /mnt/a\\040b rw - xfs /dev/vg/other rw\n\
            38 35 253:4 /mnt/a /mnt rw - xfs /dev/vg/other rw\n\
            39 35 253:4 / /mnt/broken rw\n";
        let types = |path: &str| -> Vec<_> {
            parse_lines_at(table, Path::new(path)).map(|info| info.map(|info| info.fs_type).ok()).collect()
        };
        let some = |kind: &str| Some(kind.to_owned());
        assert_eq!(types("/mnt/a"), [some("tmpfs"), some("ext4")]);
        assert_eq!(types("/mnt/a b"), [some("xfs")]);
        assert_eq!(types("/mnt/b"), []);
        // What cannot be read is an error, not absent
        assert_eq!(types("/mnt/broken"), [None]);
        assert!(matches!(parse_lines_at(b"nonsense\n", Path::new("/mnt/a")).next(), Some(Err(_))));
    }

    #[test]
    fn octal_numbers_are_characters_and_other_backslashes_stay() {
        assert_eq!(unescape_path(Path::new(r"/a\134b\011c\9z\")), Path::new("/a\\b\tc\\9z\\"));
    }

    #[test]
    fn the_root_is_mounted_and_a_fresh_directory_is_not() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!mounts_at(Path::new("/")).unwrap().is_empty());
        assert_eq!(mounts_at(dir.path()).unwrap(), []);
        assert_eq!(mounts_at(&dir.path().join("no/such")).unwrap(), []);
    }
}
