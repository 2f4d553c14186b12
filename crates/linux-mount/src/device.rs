//! Paths and block devices: their kind, number, size, usage and superblocks.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsOpenFlags, fsconfig_create, fsconfig_set_string, fsopen};

use super::{DeviceNumber, MountError, btrfs, ext4, xfs};
use crate::Filesystem;

/// Kind of file at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// No file.
    Absent,
    /// A directory.
    Directory,
    /// A block device: its node, or a bind mount of one.
    BlockDevice(DeviceNumber),
    /// A regular file, socket or any other.
    Other,
}

/// A block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockDevice {
    /// Its number.
    pub number: DeviceNumber,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// True when the kernel refuses writes, as to a snapshot.
    pub readonly: bool,
}

/// A block device that is open for reading. The kernel does not remove an open device, so that no other device gets its
/// number.
#[derive(Debug)]
pub struct OpenDevice {
    /// Number and size.
    pub device: BlockDevice,
    /// Path of the device node itself, and not of a link, which another program could point to another device.
    pub node: PathBuf,
    file: Option<File>,
}

impl OpenDevice {
    /// Makes a device without an open file, for tests.
    pub const fn without_file(device: BlockDevice, node: PathBuf) -> Self {
        Self { device, node, file: None }
    }
}

impl Drop for OpenDevice {
    /// Closes the device on another thread: the last close waits until what was written to the device is on the disk.
    fn drop(&mut self) {
        let Some(file) = self.file.take() else { return };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || drop(file))),
            Err(_) => drop(file),
        }
    }
}

/// Space and inodes of a filesystem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilesystemUsage {
    /// Size in bytes.
    pub total_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Bytes that a process without privileges may still use.
    pub available_bytes: u64,
    /// Number of inodes; 0 where the filesystem makes them as needed.
    pub total_inodes: u64,
    /// Inodes in use.
    pub used_inodes: u64,
    /// Free inodes.
    pub free_inodes: u64,
}

/// Returns the kind of file at a path, links followed.
pub(crate) fn inspect_path(path: &Path) -> Result<PathKind, MountError> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Ok(PathKind::Directory),
        Ok(metadata) if metadata.file_type().is_block_device() => {
            Ok(PathKind::BlockDevice(DeviceNumber::from_rdev(metadata.rdev())))
        }
        Ok(_) => Ok(PathKind::Other),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(PathKind::Absent)
        }
        Err(error) => Err(MountError::io("inspect", path, error)),
    }
}

/// Opens the block device at a path for reading, and reads its number and size.
pub(crate) fn open(path: &Path) -> Result<(File, BlockDevice), MountError> {
    // The kind is checked first: opening a FIFO would wait for a writer
    match inspect_path(path)? {
        PathKind::BlockDevice(_) => {}
        PathKind::Absent => return Err(MountError::NoDevice(path.to_owned())),
        PathKind::Directory | PathKind::Other => return Err(MountError::NotABlockDevice(path.to_owned())),
    }
    let mut file = File::open(path).map_err(|error| MountError::io("open", path, error))?;
    let metadata = file.metadata().map_err(|error| MountError::io("inspect", path, error))?;
    let size_bytes = file.seek(SeekFrom::End(0)).map_err(|error| MountError::io("find the size of", path, error))?;
    let number = DeviceNumber::from_rdev(metadata.rdev());
    let device = BlockDevice { number, size_bytes, readonly: is_readonly(number) };
    Ok((file, device))
}

/// Opens a device that must have this number; [`MountError::WrongDevice`] if it has another.
pub(crate) fn open_device(path: &Path, number: DeviceNumber) -> Result<OpenDevice, MountError> {
    let node = match std::fs::canonicalize(path) {
        Ok(node) => node,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Err(MountError::NoDevice(path.to_owned()));
        }
        Err(error) => return Err(MountError::io("resolve", path, error)),
    };
    let (file, device) = open(&node)?;
    if device.number == number {
        Ok(OpenDevice { device, node, file: Some(file) })
    } else {
        Err(MountError::WrongDevice { path: path.to_owned(), found: Some(device.number), wanted: number })
    }
}

/// Returns whether sysfs reports that a device is read-only; a machine without sysfs has none.
fn is_readonly(DeviceNumber { major, minor }: DeviceNumber) -> bool {
    std::fs::read(format!("/sys/dev/block/{major}:{minor}/ro")).is_ok_and(|content| content.starts_with(b"1"))
}

/// Returns whether the beginning and the end of a device are zero, where the signatures of filesystems, RAID and
/// partition tables lie.
pub(crate) fn has_no_signature_bytes(path: &Path) -> Result<bool, MountError> {
    const AREA: usize = 128 << 10;
    let (file, device) = open(path)?;
    let mut area = vec![0; AREA];
    let length = AREA.min(usize::try_from(device.size_bytes).unwrap_or(AREA));
    let area = area.get_mut(..length).unwrap_or_default();
    let end = device.size_bytes.saturating_sub(u64::try_from(length).unwrap_or(device.size_bytes));
    let mut is_zero = true;
    for offset in [0, end] {
        file.read_exact_at(area, offset).map_err(|error| MountError::io("read", path, error))?;
        is_zero &= area.iter().all(|&byte| byte == 0);
    }
    Ok(is_zero)
}

/// Returns whether an ext4 can grow by at least one block.
pub(crate) fn ext4_can_grow(path: &Path) -> Result<bool, MountError> {
    let (device, superblock) = read_superblock(path, ext4::OFFSET, ext4::LENGTH)?;
    let (bytes, block) = ext4::size(&superblock).ok_or_else(|| no_superblock(path, Filesystem::Ext4))?;
    Ok(bytes.saturating_add(block) <= device.size_bytes)
}

/// Returns whether a btrfs can grow by at least one sector, and the kernel would grow it.
pub(crate) fn btrfs_can_grow(path: &Path) -> Result<bool, MountError> {
    // Of a mounted filesystem this may be what it was before it grew last, and growing once more does no harm
    let (device, btrfs::Superblock { total_bytes, sector_bytes, .. }) = read_btrfs(path)?;
    let has_free_space = total_bytes.saturating_add(sector_bytes) <= device.size_bytes;
    let is_too_small = device.size_bytes < btrfs::SMALLEST_RESIZED;
    if has_free_space && is_too_small {
        tracing::warn!(
            device = %path.display(),
            bytes = total_bytes,
            "the kernel does not resize a btrfs filesystem to less than 256 MiB; expand the volume to at least that \
             size"
        );
    }
    Ok(has_free_space && !is_too_small)
}

/// Reads the superblock of a btrfs, and the number and size of its device.
pub(crate) fn read_btrfs(path: &Path) -> Result<(BlockDevice, btrfs::Superblock), MountError> {
    let (device, superblock) = read_superblock(path, btrfs::OFFSET, btrfs::LENGTH)?;
    let superblock = btrfs::Superblock::parse(&superblock).ok_or_else(|| no_superblock(path, Filesystem::Btrfs))?;
    Ok((device, superblock))
}

/// Checks that no filesystem on the device is mounted anywhere, also where no mount table shows it (open(2),
/// `O_EXCL`).
pub(crate) fn check_unused(path: &Path) -> Result<(), MountError> {
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty());
    opened.map(drop).map_err(|error| MountError::io("open exclusively", path, error))
}

/// Returns whether a filesystem or another device has claimed the device at a path, in whichever namespace.
pub(crate) fn is_claimed(path: &Path) -> Result<bool, MountError> {
    match check_unused(path) {
        Ok(()) => Ok(false),
        Err(MountError::Io { source, .. }) if source.kind() == io::ErrorKind::ResourceBusy => Ok(true),
        Err(error) => Err(error),
    }
}

/// Has the kernel replay the log of a btrfs, in a mount that appears nowhere and ends here, also when this process is
/// killed.
pub(crate) fn replay_btrfs_log(path: &Path) -> Result<(), MountError> {
    let replayed = fsopen(Filesystem::Btrfs.as_str(), FsOpenFlags::FSOPEN_CLOEXEC).and_then(|context| {
        fsconfig_set_string(context.as_fd(), "source", path)?;
        fsconfig_create(context.as_fd())
    });
    replayed.map_err(|error| match error {
        Errno::EXIST | Errno::BUSY => MountError::SameIdentity { device: path.to_owned() },
        error => MountError::io("replay the log of", path, error),
    })
}

/// Returns whether a mkfs.xfs was interrupted on the device.
pub(crate) fn xfs_mkfs_is_incomplete(path: &Path) -> Result<bool, MountError> {
    read_superblock(path, xfs::OFFSET, xfs::LENGTH).map(|(_, superblock)| xfs::mkfs_is_incomplete(&superblock))
}

/// Reads a superblock, and the number and size of its device.
fn read_superblock(path: &Path, offset: u64, length: usize) -> Result<(BlockDevice, Vec<u8>), MountError> {
    let (file, device) = open(path)?;
    let mut superblock = vec![0; length];
    file.read_exact_at(&mut superblock, offset)
        .map_err(|error| MountError::io("read the superblock of", path, error))?;
    Ok((device, superblock))
}

/// Makes the error of a superblock that cannot be parsed.
fn no_superblock(path: &Path, filesystem: Filesystem) -> MountError {
    MountError::Superblock { device: path.to_owned(), filesystem }
}

/// Returns space and inodes of the filesystem at a path.
pub(crate) fn filesystem_usage(path: &Path) -> Result<FilesystemUsage, MountError> {
    let stat = rustix::fs::statvfs(path).map_err(|error| MountError::io("measure", path, error))?;
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
    fn the_kind_of_file_at_a_path_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(inspect_path(dir.path()).unwrap(), PathKind::Directory);
        assert_eq!(inspect_path(&file).unwrap(), PathKind::Other);
        assert_eq!(inspect_path(&file.join("below")).unwrap(), PathKind::Absent);
        assert_eq!(inspect_path(Path::new("some/path")).unwrap(), PathKind::Absent);
        assert!(matches!(open(&file), Err(MountError::NotABlockDevice(_))));
        assert!(matches!(open(&dir.path().join("none")), Err(MountError::NoDevice(_))));
    }
}
