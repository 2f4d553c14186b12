//! The real machine: mount(2), /proc, and the programs that know filesystems.

use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use super::blocking::{STAT, blocking};
use super::tools::{Tool, Tools, failure};
use super::{
    BlockDevice, Contents, DeviceNumber, DeviceUse, Error, FilesystemUsage, HeldDevice, MkfsOptions, Mount,
    MountOptions, Mounter, PathKind, device, in_use, programs, table,
};
use crate::Filesystem;

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
        Self { tools: Tools::find(&programs::PROGRAMS) }
    }
}

impl SystemMounter {
    /// What `blkid` finds; `None` where it finds nothing.
    async fn probe(&self, tool: &Tool) -> Result<Option<Contents>, Error> {
        let output = self.tools.run(tool).await?;
        match output.status.code() {
            Some(0) => Ok(Some(contents(&String::from_utf8_lossy(&output.stdout)))),
            Some(BLKID_NOTHING) => Ok(None),
            Some(BLKID_AMBIVALENT) => Ok(Some(Contents::Other("signatures of more than one kind".to_owned()))),
            _ => Err(failure(tool, &output)),
        }
    }
}

impl Default for SystemMounter {
    fn default() -> Self {
        Self::new()
    }
}

impl Mounter for SystemMounter {
    async fn inspect(&self, path: &Path) -> Result<PathKind, Error> {
        blocking(STAT, path, device::inspect).await
    }

    async fn mounts_at(&self, target: &Path) -> Result<Vec<Mount>, Error> {
        blocking(STAT, target, table::mounts_at).await
    }

    async fn other_targets(&self, device: DeviceNumber, target: &Path) -> Result<Vec<PathBuf>, Error> {
        blocking(STAT, target, move |target| table::other_targets(device, target)).await
    }

    async fn device_uses(&self, device: DeviceNumber, lv: &Path) -> Result<Vec<DeviceUse>, Error> {
        blocking(STAT, lv, move |lv| in_use::find(device, lv)).await
    }

    async fn block_device(&self, path: &Path) -> Result<BlockDevice, Error> {
        blocking(STAT, path, |path| device::open(path).map(|(_, device)| device)).await
    }

    async fn hold(&self, path: &Path, number: DeviceNumber) -> Result<HeldDevice, Error> {
        blocking(STAT, path, move |path| device::hold(path, number)).await
    }

    async fn contents(&self, device: &Path, recorded: Option<Filesystem>) -> Result<Contents, Error> {
        // blkid says "nothing found" for a device that it cannot open or read, too; only a device that can be read where
        // signatures lie may be taken for blank.
        let is_zero = blocking(STAT, device, device::is_zero_where_signatures_lie).await?;
        let mut found = None;
        if let Some(filesystem) = recorded {
            let is_it = |found: &Contents| *found == Contents::Filesystem(filesystem.to_string());
            found = self.probe(&programs::look_for(device, filesystem)).await?.filter(is_it);
        }
        if found.is_none() {
            found = self.probe(&programs::look_for_filesystems(device)).await?;
        }
        if found.is_none() {
            found = self.probe(&programs::look(device)).await?;
        }
        match found {
            Some(Contents::Filesystem(kind))
                if kind == Filesystem::Xfs.as_str() && blocking(STAT, device, device::xfs_is_half_made).await? =>
            {
                // It would be a damaged filesystem for ever
                tracing::warn!(device = %device.display(), "a mkfs.xfs was broken off; the volume is taken for blank");
                Ok(Contents::Blank)
            }
            Some(found) => Ok(found),
            None if is_zero => Ok(Contents::Blank),
            None => Ok(Contents::Unmarked),
        }
    }

    async fn format(&self, device: &Path, filesystem: Filesystem, options: &MkfsOptions) -> Result<(), Error> {
        let make = programs::make(device, filesystem, options);
        tracing::info!(command = %make, "making a filesystem");
        // Signatures that blkid does not show can still confuse it after mkfs
        self.tools.run_ok(&programs::wipe(device)).await?;
        self.tools.run_ok(&make).await.map(drop)
    }

    async fn check(&self, device: &Path, filesystem: Filesystem) -> Result<(), Error> {
        let Some(tool) = programs::check(device, filesystem) else { return Ok(()) };
        let output = self.tools.run(&tool).await?;
        programs::verdict(&tool, &output, device, filesystem)
    }

    async fn separate(&self, device: &Path, filesystem: Filesystem, id: &str) -> Result<(), Error> {
        match filesystem {
            Filesystem::Ext4 | Filesystem::Xfs => Ok(()),
            Filesystem::Btrfs => {
                let found = blocking(STAT, device, device::btrfs_id).await?;
                if found != id {
                    tracing::info!(device = %device.display(), found, id, "giving the copied btrfs an identity of its own");
                    // btrfstune commits a new generation, to which the log would not belong: no kernel could mount it
                    if blocking(STAT, device, device::btrfs_has_log).await? {
                        // What the kernel has seen on an earlier device of the same number would keep it from giving the
                        // copy an identity for the time of this mount
                        let forgotten = self.tools.run(&programs::forget_btrfs(device)).await?;
                        tracing::debug!(device = %device.display(), ?forgotten, "the kernel was told to forget the btrfs");
                        blocking(MOUNT, device, device::replay_btrfs_log).await?;
                    }
                    blocking(STAT, device, device::check_unused).await?;
                    self.tools.run_ok(&programs::change_btrfs_id(device, id)).await?;
                }
                Ok(())
            }
        }
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
            let mounted = rustix::mount::mount(&device, target, filesystem.as_str(), options.flags, data.as_c_str());
            mounted.map_err(|error| match error {
                // "Structure needs cleaning" and "Bad message": what a filesystem says that finds itself broken
                Errno::UCLEAN | Errno::BADMSG => {
                    Error::Damaged { device, filesystem, report: format!("the kernel says {error}") }
                }
                // Its contents were looked at, so it is of this type
                Errno::INVAL => Error::io("mount (wrong mount options, or a damaged filesystem) on", target, error),
                error => Error::io("mount on", target, error),
            })
        })
        .await
    }

    async fn bind(&self, source: &Path, target: &Path) -> Result<(), Error> {
        let source = source.to_owned();
        blocking(MOUNT, target, move |target| {
            rustix::mount::mount_bind(&source, target).map_err(|error| Error::io("bind to", target, error))
        })
        .await
    }

    async fn make_readonly(&self, target: &Path, options: &MountOptions) -> Result<(), Error> {
        let flags = options.flags | MountFlags::BIND | MountFlags::RDONLY;
        blocking(MOUNT, target, move |target| {
            rustix::mount::mount_remount(target, flags, c"").map_err(|error| Error::io("make read-only", target, error))
        })
        .await
    }

    async fn unmount(&self, target: &Path) -> Result<(), Error> {
        blocking(MOUNT, target, |target| {
            rustix::mount::unmount(target, UnmountFlags::NOFOLLOW).map_err(|error| Error::io("unmount", target, error))
        })
        .await
    }

    async fn grow(&self, device: &Path, target: &Path, filesystem: Filesystem) -> Result<(), Error> {
        let can_grow = match filesystem {
            // resize2fs takes its time to find nothing to do
            Filesystem::Ext4 => blocking(STAT, device, device::ext4_has_room).await?,
            Filesystem::Btrfs => blocking(STAT, device, device::btrfs_can_grow).await?,
            Filesystem::Xfs => true,
        };
        if can_grow { self.tools.run_ok(&programs::grow(device, target, filesystem)).await.map(drop) } else { Ok(()) }
    }

    async fn usage(&self, path: &Path) -> Result<FilesystemUsage, Error> {
        blocking(STAT, path, device::usage).await
    }
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
}
