//! Looks at paths and block devices.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsOpenFlags, fsconfig_create, fsconfig_set_string, fsopen};

use super::{BlockDevice, DeviceNumber, Error, FilesystemUsage, HeldDevice, PathKind, btrfs, ext4, xfs};
use crate::Filesystem;

pub(super) fn inspect(path: &Path) -> Result<PathKind, Error> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Ok(PathKind::Directory),
        Ok(metadata) if metadata.file_type().is_block_device() => {
            Ok(PathKind::BlockDevice(device_number(metadata.rdev())))
        }
        Ok(_) => Ok(PathKind::Other),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(PathKind::Absent)
        }
        Err(error) => Err(Error::io("look at", path, error)),
    }
}

pub(super) fn device_number(number: u64) -> DeviceNumber {
    DeviceNumber { major: rustix::fs::major(number), minor: rustix::fs::minor(number) }
}

pub(super) fn open(path: &Path) -> Result<(File, BlockDevice), Error> {
    // Looked at before it is opened: opening a FIFO would wait for a writer
    match inspect(path)? {
        PathKind::BlockDevice(_) => {}
        PathKind::Absent => return Err(Error::NoDevice(path.to_owned())),
        PathKind::Directory | PathKind::Other => return Err(Error::NotABlockDevice(path.to_owned())),
    }
    let mut file = File::open(path).map_err(|error| Error::io("open", path, error))?;
    let metadata = file.metadata().map_err(|error| Error::io("look at", path, error))?;
    let size_bytes = file.seek(SeekFrom::End(0)).map_err(|error| Error::io("find the size of", path, error))?;
    let number = device_number(metadata.rdev());
    let device = BlockDevice { number, size_bytes, readonly: is_readonly(number) };
    Ok((file, device))
}

/// Opens a device and keeps it open, if it has this number.
pub(super) fn hold(path: &Path, number: DeviceNumber) -> Result<HeldDevice, Error> {
    let node = match std::fs::canonicalize(path) {
        Ok(node) => node,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Err(Error::NoDevice(path.to_owned()));
        }
        Err(error) => return Err(Error::io("resolve", path, error)),
    };
    let (file, device) = open(&node)?;
    if device.number == number {
        Ok(HeldDevice { device, node, file: Some(file) })
    } else {
        Err(Error::WrongDevice { path: path.to_owned(), found: Some(device.number), wanted: number })
    }
}

/// What sysfs says; a machine without it has no read-only devices.
fn is_readonly(DeviceNumber { major, minor }: DeviceNumber) -> bool {
    std::fs::read(format!("/sys/dev/block/{major}:{minor}/ro")).is_ok_and(|content| content.starts_with(b"1"))
}

/// Whether there is nothing at the beginning and at the end of a device, where the signatures of filesystems, RAID and partition tables
/// lie.
pub(super) fn is_zero_where_signatures_lie(path: &Path) -> Result<bool, Error> {
    const AREA: usize = 128 << 10;
    let (file, device) = open(path)?;
    let mut area = vec![0; AREA];
    let length = AREA.min(usize::try_from(device.size_bytes).unwrap_or(AREA));
    let area = area.get_mut(..length).unwrap_or_default();
    let end = device.size_bytes.saturating_sub(u64::try_from(length).unwrap_or(device.size_bytes));
    let mut is_zero = true;
    for offset in [0, end] {
        file.read_exact_at(area, offset).map_err(|error| Error::io("read", path, error))?;
        is_zero &= area.iter().all(|&byte| byte == 0);
    }
    Ok(is_zero)
}

/// Whether the device has room for at least one more block of the filesystem.
pub(super) fn ext4_has_room(path: &Path) -> Result<bool, Error> {
    let (device, superblock) = superblock(path, ext4::OFFSET, ext4::LENGTH)?;
    let (bytes, block) = ext4::size(&superblock).ok_or_else(|| no_superblock(path, Filesystem::Ext4))?;
    Ok(bytes.saturating_add(block) <= device.size_bytes)
}

/// Whether the device has room for at least one more sector of the filesystem, and the kernel would give it that.
pub(super) fn btrfs_can_grow(path: &Path) -> Result<bool, Error> {
    let (device, superblock) = superblock(path, btrfs::OFFSET, btrfs::LENGTH)?;
    // Of a mounted filesystem this may be what it was before it grew last, and growing once more does no harm
    let (bytes, sector) = btrfs::size(&superblock).ok_or_else(|| no_superblock(path, Filesystem::Btrfs))?;
    let has_room = bytes.saturating_add(sector) <= device.size_bytes;
    let is_too_small = device.size_bytes < btrfs::SMALLEST_RESIZED;
    if has_room && is_too_small {
        tracing::warn!(
            device = %path.display(),
            bytes,
            "the kernel does not grow a btrfs to less than 256 MiB; it stays as it is until the volume has that much"
        );
    }
    Ok(has_room && !is_too_small)
}

/// The UUID by which the kernel tells btrfs filesystems apart.
pub(super) fn btrfs_id(path: &Path) -> Result<String, Error> {
    let (_, superblock) = superblock(path, btrfs::OFFSET, btrfs::LENGTH)?;
    btrfs::id(&superblock).ok_or_else(|| no_superblock(path, Filesystem::Btrfs))
}

/// Whether a btrfs has a log of what was fsynced, which is replayed when it is mounted.
pub(super) fn btrfs_has_log(path: &Path) -> Result<bool, Error> {
    let (_, superblock) = superblock(path, btrfs::OFFSET, btrfs::LENGTH)?;
    btrfs::has_log(&superblock).ok_or_else(|| no_superblock(path, Filesystem::Btrfs))
}

/// Fails while a filesystem on the device is mounted anywhere, also where no mount table shows it (open(2), `O_EXCL`).
pub(super) fn check_unused(path: &Path) -> Result<(), Error> {
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty());
    opened.map(drop).map_err(|error| Error::io("open for this program alone", path, error))
}

/// Has the kernel replay the log of a btrfs, in a mount that appears nowhere and ends here, also when this process is
/// killed.
pub(super) fn replay_btrfs_log(path: &Path) -> Result<(), Error> {
    let replayed = fsopen(Filesystem::Btrfs.as_str(), FsOpenFlags::FSOPEN_CLOEXEC).and_then(|context| {
        fsconfig_set_string(context.as_fd(), "source", path)?;
        fsconfig_create(context.as_fd())
    });
    replayed.map_err(|error| match error {
        Errno::EXIST | Errno::BUSY => Error::SameIdentity { device: path.to_owned() },
        error => Error::io("replay the log of", path, error),
    })
}

/// Whether a mkfs.xfs was broken off.
pub(super) fn xfs_is_half_made(path: &Path) -> Result<bool, Error> {
    superblock(path, xfs::OFFSET, xfs::LENGTH).map(|(_, superblock)| xfs::is_half_made(&superblock))
}

fn superblock(path: &Path, offset: u64, length: usize) -> Result<(BlockDevice, Vec<u8>), Error> {
    let (file, device) = open(path)?;
    let mut superblock = vec![0; length];
    file.read_exact_at(&mut superblock, offset).map_err(|error| Error::io("read the superblock of", path, error))?;
    Ok((device, superblock))
}

fn no_superblock(path: &Path, filesystem: Filesystem) -> Error {
    Error::Superblock { device: path.to_owned(), filesystem }
}

pub(super) fn usage(path: &Path) -> Result<FilesystemUsage, Error> {
    let stat = rustix::fs::statvfs(path).map_err(|error| Error::io("measure", path, error))?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    Ok(FilesystemUsage {
        total_bytes: bytes(stat.f_blocks),
        used_bytes: bytes(stat.f_blocks.saturating_sub(stat.f_bfree)),
        available_bytes: bytes(stat.f_bavail),
        total_inodes: stat.f_files,
        used_inodes: stat.f_files.saturating_sub(stat.f_ffree),
        free_inodes: stat.f_ffree,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(inspect(dir.path()).unwrap(), PathKind::Directory);
        assert_eq!(inspect(&file).unwrap(), PathKind::Other);
        assert_eq!(inspect(&file.join("below")).unwrap(), PathKind::Absent);
        assert_eq!(inspect(Path::new("some/path")).unwrap(), PathKind::Absent);
        assert!(matches!(open(&file), Err(Error::NotABlockDevice(_))));
        assert!(matches!(open(&dir.path().join("none")), Err(Error::NoDevice(_))));
    }
}
