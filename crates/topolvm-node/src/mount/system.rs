//! The real machine: mount(2), /proc, and the programs that know filesystems.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _};
use std::path::Path;
use std::time::Duration;

use rustix::mount::{MountFlags, UnmountFlags};

use super::blocking::{STAT, blocking};
use super::tools::{Tool, Tools, failure};
use super::{
    BlockDevice, Contents, DeviceNumber, Error, FilesystemUsage, Mount, MountOptions, Mounter, PathKind, ext4, table,
};
use crate::Filesystem;

const LOOK: Duration = Duration::from_secs(30);
/// mkfs discards the whole device first, and growing writes a bitmap per 128 MiB.
const WRITE: Duration = Duration::from_mins(10);
/// How long a mount may replay a journal, and an unmount write back what is dirty.
const MOUNT: Duration = Duration::from_mins(2);

/// `blkid` found nothing (blkid(8), "RETURN CODE").
const BLKID_NOTHING: i32 = 2;
/// `blkid` found more than one thing.
const BLKID_AMBIVALENT: i32 = 8;

/// The machine that this process runs on.
#[derive(Clone, Debug)]
pub struct SystemMounter {
    tools: Tools,
}

impl SystemMounter {
    /// Looks for the programs that will be needed.
    pub fn new() -> Self {
        Self { tools: Tools::find(&["blkid", "wipefs", "mkfs.ext4", "resize2fs"]) }
    }
}

impl Default for SystemMounter {
    fn default() -> Self {
        Self::new()
    }
}

impl Mounter for SystemMounter {
    async fn inspect(&self, path: &Path) -> Result<PathKind, Error> {
        blocking(STAT, path, inspect).await
    }

    async fn mounts_at(&self, target: &Path) -> Result<Vec<Mount>, Error> {
        blocking(STAT, target, table::mounts_at).await
    }

    async fn block_device(&self, path: &Path) -> Result<BlockDevice, Error> {
        blocking(STAT, path, |path| open(path).map(|(_, device)| device)).await
    }

    async fn contents(&self, device: &Path) -> Result<Contents, Error> {
        // blkid says "nothing found" for a device that it cannot open or read, too; only a device that can be read where
        // signatures lie may be taken for blank.
        blocking(STAT, device, read_signature_areas).await?;
        let tool = Tool::new("blkid", LOOK, &["-p", "-o", "export"], device);
        let output = self.tools.run(&tool).await?;
        match output.status.code() {
            Some(0) => Ok(contents(&String::from_utf8_lossy(&output.stdout))),
            Some(BLKID_NOTHING) => Ok(Contents::Blank),
            Some(BLKID_AMBIVALENT) => Ok(Contents::Other("signatures of more than one kind".to_owned())),
            _ => Err(failure(&tool, &output)),
        }
    }

    async fn format(&self, device: &Path, filesystem: Filesystem) -> Result<(), Error> {
        tracing::info!(device = %device.display(), %filesystem, "making a filesystem");
        // Signatures that blkid does not show can still confuse it after mkfs
        self.tools.run_ok(&Tool::new("wipefs", LOOK, &["-a"], device)).await?;
        let mkfs = match filesystem {
            Filesystem::Ext4 => Tool::new("mkfs.ext4", WRITE, &["-F", "-m0"], device),
        };
        self.tools.run_ok(&mkfs).await.map(drop)
    }

    async fn mount(
        &self,
        device: &Path,
        target: &Path,
        filesystem: Filesystem,
        options: &MountOptions,
    ) -> Result<(), Error> {
        let device = device.to_owned();
        let options = options.clone();
        blocking(MOUNT, target, move |target| {
            let data = CString::new(options.data).map_err(|error| Error::io("mount on", target, error))?;
            rustix::mount::mount(&device, target, filesystem.as_str(), options.flags, data.as_c_str())
                .map_err(|error| Error::io("mount on", target, error))
        })
        .await
    }

    async fn bind(&self, device: &Path, target: &Path) -> Result<(), Error> {
        let device = device.to_owned();
        blocking(MOUNT, target, move |target| {
            rustix::mount::mount_bind(&device, target).map_err(|error| Error::io("bind the device to", target, error))
        })
        .await
    }

    async fn make_readonly(&self, target: &Path) -> Result<(), Error> {
        blocking(MOUNT, target, |target| {
            rustix::mount::mount_remount(target, MountFlags::BIND | MountFlags::RDONLY, c"")
                .map_err(|error| Error::io("make read-only", target, error))
        })
        .await
    }

    async fn unmount(&self, target: &Path) -> Result<(), Error> {
        blocking(MOUNT, target, |target| {
            rustix::mount::unmount(target, UnmountFlags::NOFOLLOW).map_err(|error| Error::io("unmount", target, error))
        })
        .await
    }

    async fn grow(&self, device: &Path, filesystem: Filesystem) -> Result<(), Error> {
        match filesystem {
            Filesystem::Ext4 => {
                if blocking(STAT, device, ext4_has_room).await? {
                    self.tools.run_ok(&Tool::new("resize2fs", WRITE, &[], device)).await?;
                }
                Ok(())
            }
        }
    }

    async fn usage(&self, path: &Path) -> Result<FilesystemUsage, Error> {
        blocking(STAT, path, usage).await
    }
}

fn inspect(path: &Path) -> Result<PathKind, Error> {
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

fn device_number(number: u64) -> DeviceNumber {
    DeviceNumber { major: rustix::fs::major(number), minor: rustix::fs::minor(number) }
}

fn open(path: &Path) -> Result<(File, BlockDevice), Error> {
    // Looked at before it is opened: opening a FIFO would wait for a writer
    match inspect(path)? {
        PathKind::BlockDevice(_) => {}
        PathKind::Absent => return Err(Error::NoDevice(path.to_owned())),
        PathKind::Directory | PathKind::Other => return Err(Error::NotABlockDevice(path.to_owned())),
    }
    let mut file = File::open(path).map_err(|error| Error::io("open", path, error))?;
    let metadata = file.metadata().map_err(|error| Error::io("look at", path, error))?;
    let size_bytes = file.seek(SeekFrom::End(0)).map_err(|error| Error::io("find the size of", path, error))?;
    let device = BlockDevice { number: device_number(metadata.rdev()), size_bytes };
    Ok((file, device))
}

/// Reads the beginning and the end of a device, where the signatures of filesystems, RAID and partition tables lie.
fn read_signature_areas(path: &Path) -> Result<(), Error> {
    const AREA: usize = 128 << 10;
    let (file, device) = open(path)?;
    let mut area = vec![0; AREA];
    let length = AREA.min(usize::try_from(device.size_bytes).unwrap_or(AREA));
    let area = area.get_mut(..length).unwrap_or_default();
    let end = device.size_bytes.saturating_sub(u64::try_from(length).unwrap_or(device.size_bytes));
    for offset in [0, end] {
        file.read_exact_at(area, offset).map_err(|error| Error::io("read", path, error))?;
    }
    Ok(())
}

/// Whether the device has room for at least one more block of the filesystem.
fn ext4_has_room(path: &Path) -> Result<bool, Error> {
    let (file, device) = open(path)?;
    let mut superblock = [0; ext4::LENGTH];
    file.read_exact_at(&mut superblock, ext4::OFFSET)
        .map_err(|error| Error::io("read the superblock of", path, error))?;
    let (bytes, block) = ext4::size(&superblock)
        .ok_or_else(|| Error::Superblock { device: path.to_owned(), filesystem: Filesystem::Ext4 })?;
    Ok(bytes.saturating_add(block) <= device.size_bytes)
}

fn usage(path: &Path) -> Result<FilesystemUsage, Error> {
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

/// Reads what `blkid -p -o export` prints: one `NAME=value` a line.
fn contents(export: &str) -> Contents {
    let value =
        |name: &str| export.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned);
    match (value("TYPE"), value("USAGE"), value("PTTYPE")) {
        (Some(kind), Some(usage), _) if usage == "filesystem" => Contents::Filesystem(kind),
        (Some(kind), _, _) => Contents::Other(kind),
        (None, _, Some(table)) => Contents::Other(format!("a partition table ({table})")),
        (None, _, None) => Contents::Other("something that blkid cannot name".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("DEVNAME=/dev/dm-1\nUUID=1-2\nBLOCK_SIZE=4096\nTYPE=ext4\nUSAGE=filesystem\n", Contents::Filesystem("ext4".to_owned()))]
    #[case("DEVNAME=/dev/dm-1\nTYPE=LVM2_member\nUSAGE=raid\n", Contents::Other("LVM2_member".to_owned()))]
    #[case("DEVNAME=/dev/dm-1\nPTUUID=1\nPTTYPE=gpt\n", Contents::Other("a partition table (gpt)".to_owned()))]
    #[case("DEVNAME=/dev/dm-1\n", Contents::Other("something that blkid cannot name".to_owned()))]
    fn what_blkid_prints_is_read(#[case] export: &str, #[case] expected: Contents) {
        assert_eq!(contents(export), expected);
    }

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
