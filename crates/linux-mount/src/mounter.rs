//! The port to the machine: what the CSI Node service needs of mounts, filesystems and block devices.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use tokio_util::sync::CancellationToken;
use topolvm_api::IoLimits;

use super::{
    BlockDevice, Contents, DeviceNumber, DeviceUse, DiskStatistics, FilesystemUsage, LimitError, LimitsInForce,
    MkfsOptions, Mount, MountError, MountOptions, OpenDevice, PathKind, PodLimits, UsageBatch,
};
use crate::Filesystem;

/// Port to the mounts, filesystems and block devices of the machine, and to the limits of their I/O.
pub trait Mounter: Send + Sync + 'static {
    /// Returns the kind of file at a path, links followed.
    fn inspect_path(&self, path: &Path) -> impl Future<Output = Result<PathKind, MountError>> + Send;

    /// Lists the mounts at exactly this path, the lowest layer first. Must work on a mount whose filesystem has
    /// failed.
    fn mounts_at(&self, target: &Path) -> impl Future<Output = Result<Vec<Mount>, MountError>> + Send;

    /// Checks that the kubelet sees what is mounted at this path: [`MountError::NotShared`] if it does not.
    fn check_shared(&self, target: &Path) -> impl Future<Output = Result<(), MountError>> + Send;

    /// Checks that nothing is mounted at this path on the node, where nothing is mounted any more that this process
    /// sees: [`MountError::NotVisible`] if there is.
    fn check_unmounted(&self, target: &Path) -> impl Future<Output = Result<(), MountError>> + Send;

    /// Unmounts on the node the mounts that earlier versions have stacked at a directory.
    fn unmount_repeated(&self, directory: &Path) -> impl Future<Output = Result<(), MountError>> + Send;

    /// Counts the mounts that are stacked on the node at a directory; 0 if they cannot be listed.
    fn count_stacked_mounts(&self, directory: &Path) -> usize;

    /// Finds the paths other than `target` where the root directory of a device's filesystem is mounted, or the node
    /// of the device is bound to. Must work on a device that has failed.
    fn other_targets(
        &self,
        device: DeviceNumber,
        target: &Path,
    ) -> impl Future<Output = Result<Vec<PathBuf>, MountError>> + Send;

    /// Finds where the node of a device is, apart from where LVM has made it for the LV of this path. Must work on a
    /// device that has failed.
    fn find_device_uses(
        &self,
        device: DeviceNumber,
        lv: &Path,
    ) -> impl Future<Output = Result<Vec<DeviceUse>, MountError>> + Send;

    /// Finds what keeps a device that LVM does not remove, given the path of its LV.
    fn find_device_holders(
        &self,
        device: DeviceNumber,
        lv: &Path,
    ) -> impl Future<Output = Result<Vec<DeviceUse>, MountError>> + Send;

    /// Returns number and size of a block device.
    fn block_device(&self, path: &Path) -> impl Future<Output = Result<BlockDevice, MountError>> + Send;

    /// Opens the block device at a path, links followed, which must have this number; [`MountError::WrongDevice`] if
    /// it has another.
    fn open_device(
        &self,
        path: &Path,
        number: DeviceNumber,
    ) -> impl Future<Output = Result<OpenDevice, MountError>> + Send;

    /// Probes the contents of a block device. [`Contents::Blank`] must be certain: the device is then overwritten, as
    /// it is with [`Contents::Unrecognized`] unless the data is a copy. Where a filesystem of the type `recorded` is
    /// found, other signatures, which may be of files in it, do not count.
    fn probe_contents(
        &self,
        device: &Path,
        recorded: Option<Filesystem>,
    ) -> impl Future<Output = Result<Contents, MountError>> + Send;

    /// Makes a filesystem on a blank device.
    fn format(
        &self,
        device: &Path,
        filesystem: Filesystem,
        options: &MkfsOptions,
    ) -> impl Future<Output = Result<(), MountError>> + Send;

    /// Checks the filesystem on a device that is not mounted, and repairs what can be repaired without losing
    /// anything; [`MountError::Damaged`] for what cannot.
    fn check_filesystem(
        &self,
        device: &Path,
        filesystem: Filesystem,
    ) -> impl Future<Output = Result<(), MountError>> + Send;

    /// Sets the UUID of the filesystem on a copied device that is not mounted to `id`, where filesystems with the
    /// same UUID cannot be mounted side by side. All that was fsynced stays in it.
    fn set_unique_uuid(
        &self,
        device: &Path,
        filesystem: Filesystem,
        id: &str,
    ) -> impl Future<Output = Result<(), MountError>> + Send;

    /// Mounts a filesystem.
    fn mount(
        &self,
        device: &Path,
        target: &Path,
        filesystem: Filesystem,
        options: &MountOptions,
    ) -> impl Future<Output = Result<(), MountError>> + Send;

    /// Bind-mounts a path to another: the node of a device to a file, a mounted filesystem to a directory.
    fn bind(&self, source: &Path, target: &Path) -> impl Future<Output = Result<(), MountError>> + Send;

    /// Remounts the bind mount at a path read-only, with the flags of these options.
    fn make_readonly(
        &self,
        target: &Path,
        options: &MountOptions,
    ) -> impl Future<Output = Result<(), MountError>> + Send;

    /// Returns whether a filesystem, or another device, has claimed a device, also in another mount namespace, or
    /// without a mount: a frozen filesystem stays when it is unmounted.
    fn is_claimed(&self, device: &Path) -> impl Future<Output = Result<bool, MountError>> + Send;

    /// Thaws the filesystem that is mounted at a path. Returns whether it was frozen.
    fn thaw(&self, target: &Path) -> impl Future<Output = Result<bool, MountError>> + Send;

    /// Unmounts the topmost layer at a path.
    fn unmount(&self, target: &Path) -> impl Future<Output = Result<(), MountError>> + Send;

    /// Grows the filesystem that is mounted at a path to the size of its device, if it is smaller;
    /// [`MountError::Frozen`] if it is frozen.
    fn grow_filesystem(
        &self,
        device: &Path,
        target: &Path,
        filesystem: Filesystem,
    ) -> impl Future<Output = Result<(), MountError>> + Send;

    /// Discards the free blocks of the filesystem that is mounted at a path. Returns early, when the mount is not in
    /// use for it any more, after `stop` was cancelled.
    fn discard_free_blocks(
        &self,
        target: &Path,
        stop: &CancellationToken,
    ) -> impl Future<Output = Result<(), MountError>> + Send;

    /// Returns space and inodes of the filesystem mounted at a path.
    fn filesystem_usage(&self, path: &Path) -> impl Future<Output = Result<FilesystemUsage, MountError>> + Send;

    /// Returns space and inodes of the filesystems mounted at these paths, without those that fail. Waits a second at
    /// most for one whose disk hangs.
    fn filesystem_usages(&self, paths: Vec<PathBuf>) -> impl Future<Output = UsageBatch> + Send;

    /// Lists the devices whose filesystem is mounted, each with one of the paths at which its root directory is.
    fn mounted_devices(&self) -> impl Future<Output = Result<HashMap<DeviceNumber, PathBuf>, MountError>> + Send;

    /// Lists the paths at which something is mounted or bound.
    fn mount_points(&self) -> impl Future<Output = Result<HashSet<PathBuf>, MountError>> + Send;

    /// Sets these I/O limits, and no others, for the pod of this UID on a device, and returns the limits that the
    /// kernel reports.
    fn limit_io(
        &self,
        pod: &str,
        device: DeviceNumber,
        requested: &IoLimits,
    ) -> impl Future<Output = Result<LimitsInForce, LimitError>> + Send;

    /// Returns those limits of I/O that the kernel has no more, and changes nothing. A pod that has ended lacks none.
    fn find_lost_limits(
        &self,
        expected: Vec<PodLimits>,
    ) -> impl Future<Output = Result<Vec<PodLimits>, LimitError>> + Send;

    /// Returns the I/O statistics of all block devices. Opens no device.
    fn disk_statistics(&self)
    -> impl Future<Output = Result<HashMap<DeviceNumber, DiskStatistics>, MountError>> + Send;
}
