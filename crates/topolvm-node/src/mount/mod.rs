//! Mount points, filesystems and block devices of this machine behind one port. Only this module calls mount(2) and
//! starts processes.

mod blocking;
mod btrfs;
mod device;
mod error;
mod ext4;
mod in_use;
mod options;
mod programs;
mod system;
mod table;
mod tools;
mod xfs;

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::Filesystem;

pub use blocking::Stuck;
pub(crate) use blocking::{STAT, StuckAt, blocking};
pub use error::Error;
pub use in_use::DeviceUse;
pub use options::{MountOptions, OptionError};
pub(crate) use programs::recovery_hint;
pub use system::SystemMounter;
pub use topolvm_api::{MkfsOptionError, MkfsOptions};

/// Major and minor number of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceNumber {
    /// Says which driver.
    pub major: u32,
    /// Says which of its devices.
    pub minor: u32,
}

impl std::fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// What is found at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// Nothing.
    Absent,
    /// A directory.
    Directory,
    /// A block device, be it a node or a bind mount of one.
    BlockDevice(DeviceNumber),
    /// A file, socket or whatever else there is.
    Other,
}

/// Something that is mounted at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The device of the mounted filesystem. For the bind mount of a device node that is not the device itself, but the
    /// filesystem on which the node lies.
    pub device: DeviceNumber,
    /// Type of the mounted filesystem.
    pub filesystem: String,
    /// Whether it was mounted for reading only.
    pub readonly: bool,
    /// Whether the filesystem itself takes no changes any more. Where `readonly` is false, the kernel has stopped them
    /// after an error.
    pub filesystem_readonly: bool,
}

/// What lies on a block device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Nothing that anybody would miss.
    Blank,
    /// Data without a signature, which nobody can name.
    Unmarked,
    /// A filesystem of this type.
    Filesystem(String),
    /// Something else, in words.
    Other(String),
}

/// A block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockDevice {
    /// Its number.
    pub number: DeviceNumber,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// Whether the kernel refuses to write to it, as to a snapshot.
    pub readonly: bool,
}

/// A block device that is held open for reading: the kernel removes none that is open, so that nobody else gets its number.
#[derive(Debug)]
pub struct HeldDevice {
    /// What it is.
    pub device: BlockDevice,
    /// Its node itself and no link, which somebody could point at another device.
    pub node: PathBuf,
    file: Option<File>,
}

impl HeldDevice {
    /// A device that only a test knows.
    pub const fn unheld(device: BlockDevice, node: PathBuf) -> Self {
        Self { device, node, file: None }
    }
}

impl Drop for HeldDevice {
    /// Off the threads that serve everybody: the last one who closes a device waits until what was written to it is on the disk.
    fn drop(&mut self) {
        let Some(file) = self.file.take() else { return };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || drop(file))),
            Err(_) => drop(file),
        }
    }
}

/// What the CSI node service needs from the machine.
pub trait Mounter: Send + Sync + 'static {
    /// What is found at the path, links followed.
    fn inspect(&self, path: &Path) -> impl Future<Output = Result<PathKind, Error>> + Send;

    /// What is mounted at exactly this path, the lowest layer first. Must work on a mount whose filesystem has failed.
    fn mounts_at(&self, target: &Path) -> impl Future<Output = Result<Vec<Mount>, Error>> + Send;

    /// Where else than at `target` the root directory of a device's filesystem, or the node of the device, appears. Must
    /// work on a device that has failed.
    fn other_targets(
        &self,
        device: DeviceNumber,
        target: &Path,
    ) -> impl Future<Output = Result<Vec<PathBuf>, Error>> + Send;

    /// Where the node of the device whose LV has this path still is, apart from where LVM has made it. Must work on a device that has failed.
    fn device_uses(
        &self,
        device: DeviceNumber,
        lv: &Path,
    ) -> impl Future<Output = Result<Vec<DeviceUse>, Error>> + Send;

    /// Number and size of a block device.
    fn block_device(&self, path: &Path) -> impl Future<Output = Result<BlockDevice, Error>> + Send;

    /// Opens the block device at a path, links followed, which must have this number. Another one is [`Error::WrongDevice`].
    fn hold(&self, path: &Path, number: DeviceNumber) -> impl Future<Output = Result<HeldDevice, Error>> + Send;

    /// What lies on a block device. [`Contents::Blank`] must be certain: the device is then overwritten, as it is with
    /// [`Contents::Unmarked`] unless the data is a copy. Where a filesystem of the type `recorded` is seen, nothing
    /// else that a file in it may look like counts.
    fn contents(
        &self,
        device: &Path,
        recorded: Option<Filesystem>,
    ) -> impl Future<Output = Result<Contents, Error>> + Send;

    /// Makes a filesystem on a blank device.
    fn format(
        &self,
        device: &Path,
        filesystem: Filesystem,
        options: &MkfsOptions,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Checks the filesystem on a device that is not mounted, and repairs what can be repaired without losing anything.
    /// What is worse is [`Error::Damaged`].
    fn check(&self, device: &Path, filesystem: Filesystem) -> impl Future<Output = Result<(), Error>> + Send;

    /// Gives the filesystem on a copied device that is not mounted the identity `id`, a UUID, where filesystems of the
    /// same identity cannot be mounted side by side. All that was fsynced stays in it.
    fn separate(
        &self,
        device: &Path,
        filesystem: Filesystem,
        id: &str,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Mounts a filesystem.
    fn mount(
        &self,
        device: &Path,
        target: &Path,
        filesystem: Filesystem,
        options: &MountOptions,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Makes what is at one path appear at another: the node of a device at a file, a mounted filesystem at a directory.
    fn bind(&self, source: &Path, target: &Path) -> impl Future<Output = Result<(), Error>> + Send;

    /// Turns the bind mount at a path into one for reading only, with the flags of these options.
    fn make_readonly(&self, target: &Path, options: &MountOptions) -> impl Future<Output = Result<(), Error>> + Send;

    /// Takes away the topmost layer that is mounted at a path.
    fn unmount(&self, target: &Path) -> impl Future<Output = Result<(), Error>> + Send;

    /// Grows the filesystem that is mounted at a path to the size of its device, where it is smaller.
    fn grow(
        &self,
        device: &Path,
        target: &Path,
        filesystem: Filesystem,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Space and inodes of the filesystem mounted at a path.
    fn usage(&self, path: &Path) -> impl Future<Output = Result<FilesystemUsage, Error>> + Send;
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
