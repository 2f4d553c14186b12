//! A machine whose block devices are the volumes of a fake LVM and whose mounts are in memory. Directories and files at
//! target paths are real, in a temporary directory.

mod cgroups;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use linux_mount::{
    BlockDevice, Contents, DeviceNumber, DeviceUse, DiskStatistics, Filesystem, FilesystemUsage, HungTask, LimitError,
    LimitsInForce, MkfsOptions, Mount, MountError, MountHolder, MountOptions, Mounter, OpenDevice, PathKind, PodLimits,
    UsageBatch,
};
use parking_lot::{MappedMutexGuard, Mutex, MutexGuard};
use tokio::sync::watch;
use topolvm_api::IoLimits;
use topolvm_runtime::CancellationToken;
use topolvm_testkit::lvm::{EXTENT, FakeLvm};

use cgroups::Cgroups;

/// The machine. Clones are the same machine.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    lvm: FakeLvm,
    state: Arc<Mutex<State>>,
    /// mkfs waits while this is false.
    mkfs_may_end: watch::Sender<bool>,
    /// The paths where free blocks are being discarded.
    discarding: watch::Sender<Option<PathBuf>>,
    /// Discarding waits while this is false.
    discard_may_end: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    /// Contents of each device, and its size in bytes.
    contents: BTreeMap<PathBuf, (Contents, u64)>,
    mounts: Vec<Mounted>,
    /// The directory that the node shares; all of it without one.
    shared: Option<PathBuf>,
    /// Paths at which something is mounted on the node alone.
    mounted_on_node: BTreeSet<PathBuf>,
    /// Mounts on the node that are stacked at the directory of the socket.
    stacked_mounts: usize,
    /// Links that lead to other devices than those of their volumes.
    stale: BTreeMap<PathBuf, PathBuf>,
    /// Every look at these paths gives EIO.
    failed: BTreeSet<PathBuf>,
    /// Every look at these paths waits forever.
    hanging: BTreeMap<PathBuf, HungTask>,
    inspections: usize,
    /// Devices whose filesystem cannot be repaired.
    damaged: BTreeSet<PathBuf>,
    /// Devices whose filesystem is frozen, mounted or not.
    frozen: BTreeSet<PathBuf>,
    /// Holders of each device.
    holders: Vec<DeviceUse>,
    /// Holders of each mount, which cannot be unmounted while there are any.
    mount_holders: Vec<MountHolder>,
    /// Number of times that a filesystem was to grow.
    growths: usize,
    /// The growth that waits until its filesystem is thawed.
    waiting: HungTask,
    /// Devices whose filesystem the kernel has stopped.
    stopped: BTreeSet<PathBuf>,
    /// Actions on devices, such as `mkfs /dev/vg/lv -i 4096`.
    done: Vec<String>,
    /// Number of times that mkfs has begun.
    mkfs_begun: usize,
    /// The end of discarding free blocks.
    discards: Vec<&'static str>,
    /// I/O of devices, by minor number.
    statistics: BTreeMap<u32, DiskStatistics>,
    cgroups: Cgroups,
}

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mounted {
    pub(crate) device: PathBuf,
    pub(crate) target: PathBuf,
    /// `None` for the bind mount of a device node.
    pub(crate) filesystem: Option<Filesystem>,
    pub(crate) readonly: bool,
    /// Options for the filesystem.
    pub(crate) data: String,
}

impl Machine {
    /// A machine with the volumes of this LVM, all blank.
    pub(crate) fn new(lvm: &FakeLvm) -> Self {
        Self {
            lvm: lvm.clone(),
            state: Arc::default(),
            mkfs_may_end: watch::Sender::new(true),
            discarding: watch::Sender::new(None),
            discard_may_end: watch::Sender::new(true),
        }
    }

    /// Lets discarding take its time from now on.
    pub(crate) fn hold_discards(&self) {
        self.discard_may_end.send_replace(false);
    }

    /// Waits until free blocks are being discarded at a path.
    pub(crate) async fn discard_begun(&self, target: &Path) {
        self.discarding.subscribe().wait_for(|path| path.as_deref() == Some(target)).await.unwrap();
    }

    /// The end of discarding each time: `discarded` or `stopped`.
    pub(crate) fn discards(&self) -> Vec<&'static str> {
        self.state().discards.clone()
    }

    /// Lets something lie on a device, such as `/dev/vg/lv`.
    pub(crate) fn put(&self, device: &Path, contents: Contents) {
        let size = self.device(device).unwrap().size_bytes;
        self.state().contents.insert(device.to_owned(), (contents, size));
    }

    /// Mounts a device by hand, as when an earlier call was killed after it.
    pub(crate) fn mount_by_hand(&self, device: &Path, target: &Path) {
        self.state().mounts.push(Mounted {
            device: device.to_owned(),
            target: target.to_owned(),
            filesystem: Some(Filesystem::Ext4),
            readonly: false,
            data: String::new(),
        });
    }

    /// The agent has its container's own filesystem everywhere but in this directory.
    pub(crate) fn share_only(&self, directory: &Path) {
        self.state().shared = Some(directory.to_owned());
    }

    /// Mounts something that the agent does not see.
    pub(crate) fn mount_on_node(&self, target: &Path) {
        self.state().mounted_on_node.insert(target.to_owned());
    }

    /// Mounts that cannot be unmounted are stacked at the directory of the agent's socket.
    pub(crate) fn stack_mounts(&self, count: usize) {
        self.state().stacked_mounts = count;
    }

    /// The link at one volume's path leads to the device of another from now on, as when udev has stopped.
    pub(crate) fn mislead(&self, path: &Path, other: &Path) {
        self.state().stale.insert(path.to_owned(), other.to_owned());
    }

    /// Sets the I/O statistics of the device with this minor number.
    pub(crate) fn set_statistics(&self, minor: u32, statistics: DiskStatistics) {
        self.state().statistics.insert(minor, statistics);
    }

    /// The disk below a path fails.
    pub(crate) fn fail(&self, path: &Path) {
        self.state().failed.insert(path.to_owned());
    }

    /// The disk below a path hangs.
    pub(crate) fn hang(&self, path: &Path) {
        self.state().hanging.insert(path.to_owned(), HungTask::default());
    }

    /// Every disk answers again, and every wait for one is over.
    pub(crate) fn answer(&self) {
        self.state().hanging.clear();
    }

    /// Returns the number of inspections of paths.
    pub(crate) fn inspections(&self) -> usize {
        self.state().inspections
    }

    /// The filesystem on a device cannot be repaired.
    pub(crate) fn damage(&self, device: &Path) {
        self.state().damaged.insert(device.to_owned());
    }

    /// Sets what holds each device.
    pub(crate) fn hold(&self, holder: DeviceUse) {
        self.state().holders.push(holder);
    }

    /// Sets what holds each mount.
    pub(crate) fn hold_mounts(&self, holders: Vec<MountHolder>) {
        self.state().mount_holders = holders;
    }

    /// Freezes the filesystem on a device.
    pub(crate) fn freeze(&self, device: &Path) {
        self.state().frozen.insert(device.to_owned());
    }

    /// Returns the number of times that a filesystem was to grow.
    pub(crate) fn growths(&self) -> usize {
        self.state().growths
    }

    /// Returns whether the filesystem on a device is frozen.
    pub(crate) fn is_frozen(&self, device: &Path) -> bool {
        self.state().frozen.contains(device)
    }

    /// The kernel refuses further writes to the filesystem on a device.
    pub(crate) fn stop_writes(&self, device: &Path) {
        self.state().stopped.insert(device.to_owned());
    }

    /// Returns the actions on devices: `mkfs`, `check`, `separate`.
    pub(crate) fn done(&self) -> Vec<String> {
        self.state().done.clone()
    }

    /// All mounts, the oldest first.
    pub(crate) fn mounts(&self) -> Vec<Mounted> {
        self.state().mounts.clone()
    }

    /// Returns the number of filesystems that were made.
    pub(crate) fn formatted(&self) -> usize {
        self.state().done.iter().filter(|done| done.starts_with("mkfs")).count()
    }

    /// Size in bytes of the filesystem on a device.
    pub(crate) fn filesystem_bytes(&self, device: &Path) -> u64 {
        self.state().contents.get(device).map(|(_, bytes)| *bytes).unwrap()
    }

    /// Lets mkfs take its time from now on.
    pub(crate) fn hold_mkfs(&self) {
        self.mkfs_may_end.send_replace(false);
    }

    /// Waits until mkfs has begun so many times.
    pub(crate) async fn mkfs_begun(&self, times: usize) {
        let mut changes = self.mkfs_may_end.subscribe();
        while self.state().mkfs_begun < times {
            changes.changed().await.unwrap();
        }
        assert_eq!(self.state().mkfs_begun, times);
    }

    /// Lets mkfs come to its end.
    pub(crate) fn release_mkfs(&self) {
        self.mkfs_may_end.send_replace(true);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn device(&self, path: &Path) -> Option<BlockDevice> {
        let path = &self.resolve(path);
        let name = path.strip_prefix("/dev").ok()?.to_str()?;
        let (vg, lv) = name.split_once('/')?;
        let volume = self.lvm.volume(vg, lv).filter(|volume| volume.active)?;
        Some(BlockDevice {
            number: DeviceNumber { major: 253, minor: volume.minor },
            size_bytes: volume.extents * EXTENT,
            readonly: volume.attr.get(1..2) == Some("r"),
        })
    }

    fn resolve(&self, path: &Path) -> PathBuf {
        self.state().stale.get(path).map_or_else(|| path.to_owned(), Clone::clone)
    }

    fn device_or_error(&self, path: &Path) -> Result<BlockDevice, MountError> {
        let bound = self.top(path).filter(|mount| mount.filesystem.is_none());
        let path = bound.map_or_else(|| path.to_owned(), |mount| mount.device);
        self.device(&path).ok_or(MountError::NoDevice(path))
    }

    fn top(&self, target: &Path) -> Option<Mounted> {
        self.state().mounts.iter().rev().find(|mount| mount.target == target).cloned()
    }

    /// The cgroups of pods, to look at and to change.
    pub(crate) fn cgroups(&self) -> MappedMutexGuard<'_, Cgroups> {
        MutexGuard::map(self.state(), |state| &mut state.cgroups)
    }
}

impl Mounter for Machine {
    async fn inspect_path(&self, path: &Path) -> Result<PathKind, MountError> {
        self.state().inspections += 1;
        if let Some(hung_task) = self.state().hanging.get(path) {
            return Err(MountError::Hung { path: path.to_owned(), hung_task: hung_task.clone() });
        }
        if self.state().failed.contains(path) {
            return Err(MountError::Io {
                action: "look at",
                path: path.to_owned(),
                source: io::Error::from_raw_os_error(5),
            });
        }
        if self.top(path).is_some_and(|mount| mount.filesystem.is_none()) {
            return Ok(PathKind::BlockDevice(self.device_or_error(path)?.number));
        }
        if let Some(device) = self.device(path) {
            return Ok(PathKind::BlockDevice(device.number));
        }
        Ok(match std::fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => PathKind::Directory,
            Ok(_) => PathKind::Other,
            Err(_) => PathKind::Absent,
        })
    }

    async fn mounts_at(&self, target: &Path) -> Result<Vec<Mount>, MountError> {
        let mounts = self.mounts().into_iter().filter(|mount| mount.target == target);
        Ok(mounts
            .map(|mount| match mount.filesystem {
                Some(filesystem) => Mount {
                    device: self.device(&mount.device).unwrap().number,
                    filesystem: filesystem.to_string(),
                    readonly: mount.readonly,
                    filesystem_readonly: mount.readonly || self.state().stopped.contains(&mount.device),
                },
                None => Mount {
                    device: DeviceNumber { major: 0, minor: 5 },
                    filesystem: "devtmpfs".to_owned(),
                    readonly: mount.readonly,
                    filesystem_readonly: false,
                },
            })
            .collect())
    }

    async fn check_shared(&self, target: &Path) -> Result<(), MountError> {
        let shared = self.state().shared.clone();
        let is_shared = shared.is_none_or(|shared| target.starts_with(shared));
        if is_shared { Ok(()) } else { Err(MountError::NotShared(target.to_owned())) }
    }

    async fn unmount_repeated(&self, _directory: &Path) -> Result<(), MountError> {
        Ok(())
    }

    fn count_stacked_mounts(&self, directory: &Path) -> usize {
        if directory.ends_with("plugins/topolvm.io/node") { self.state().stacked_mounts } else { 0 }
    }

    async fn check_unmounted(&self, target: &Path) -> Result<(), MountError> {
        let is_hidden = self.state().mounted_on_node.contains(target);
        if is_hidden { Err(MountError::NotVisible(target.to_owned())) } else { Ok(()) }
    }

    async fn other_targets(&self, device: DeviceNumber, target: &Path) -> Result<Vec<PathBuf>, MountError> {
        let others = self.mounts().into_iter().filter(|mount| mount.target != target);
        let is_it = |mount: &Mounted| self.device(&mount.device).is_some_and(|found| found.number == device);
        Ok(others.filter(is_it).map(|mount| mount.target).collect())
    }

    async fn find_device_uses(&self, device: DeviceNumber, _: &Path) -> Result<Vec<DeviceUse>, MountError> {
        let is_it = |mount: &Mounted| self.device(&mount.device).is_some_and(|found| found.number == device);
        Ok(self.mounts().into_iter().filter(is_it).map(|mount| DeviceUse::Mounted(mount.target)).collect())
    }

    async fn find_device_holders(&self, device: DeviceNumber, lv: &Path) -> Result<Vec<DeviceUse>, MountError> {
        let holders = self.state().holders.clone();
        Ok(self.find_device_uses(device, lv).await?.into_iter().chain(holders).collect())
    }

    async fn block_device(&self, path: &Path) -> Result<BlockDevice, MountError> {
        self.device_or_error(path)
    }

    async fn open_device(&self, path: &Path, number: DeviceNumber) -> Result<OpenDevice, MountError> {
        let device = self.device_or_error(path)?;
        if device.number != number {
            let found = Some(device.number);
            return Err(MountError::WrongDevice { path: path.to_owned(), found, wanted: number });
        }
        Ok(OpenDevice::without_file(device, self.resolve(path)))
    }

    async fn probe_contents(&self, device: &Path, _: Option<Filesystem>) -> Result<Contents, MountError> {
        self.device_or_error(device)?;
        let state = self.state();
        Ok(state.contents.get(device).map_or(Contents::Blank, |(contents, _)| contents.clone()))
    }

    async fn format(&self, device: &Path, filesystem: Filesystem, options: &MkfsOptions) -> Result<(), MountError> {
        let size = self.device_or_error(device)?.size_bytes;
        self.state().mkfs_begun += 1;
        self.mkfs_may_end.send_modify(|_| {});
        drop(self.mkfs_may_end.subscribe().wait_for(|may_end| *may_end).await);
        let mut state = self.state();
        let words = ["mkfs".to_owned(), device.display().to_string()];
        state.done.push(words.iter().chain(options.as_slice()).map(String::as_str).collect::<Vec<_>>().join(" "));
        let contents = Contents::Filesystem(filesystem.to_string());
        state.contents.insert(device.to_owned(), (contents, size));
        Ok(())
    }

    async fn check_filesystem(&self, device: &Path, filesystem: Filesystem) -> Result<(), MountError> {
        assert!(!self.is_claimed(device).await?, "e2fsck says that the device is in use");
        let mut state = self.state();
        state.done.push(format!("check {}", device.display()));
        if state.damaged.contains(device) {
            return Err(MountError::Damaged {
                device: device.to_owned(),
                filesystem,
                report: "RUN fsck MANUALLY".to_owned(),
            });
        }
        Ok(())
    }

    async fn set_unique_uuid(&self, device: &Path, _: Filesystem, id: &str) -> Result<(), MountError> {
        self.state().done.push(format!("separate {} {id}", device.display()));
        Ok(())
    }

    async fn mount(
        &self,
        device: &Path,
        target: &Path,
        filesystem: Filesystem,
        options: &MountOptions,
    ) -> Result<(), MountError> {
        assert!(target.is_dir(), "mount(2) needs a directory");
        let mut state = self.state();
        let contents = state.contents.get(device).map(|(contents, _)| contents);
        assert_eq!(contents, Some(&Contents::Filesystem(filesystem.to_string())));
        let is_other = |mount: &Mounted| mount.device == device && mount.readonly != options.is_readonly();
        assert!(!state.mounts.iter().any(is_other), "the kernel says EBUSY");
        state.mounts.push(Mounted {
            device: device.to_owned(),
            target: target.to_owned(),
            filesystem: Some(filesystem),
            readonly: options.is_readonly(),
            data: options.data.clone(),
        });
        Ok(())
    }

    async fn bind(&self, source: &Path, target: &Path) -> Result<(), MountError> {
        let mounted = self.top(source).map_or_else(
            || Mounted {
                device: source.to_owned(),
                target: target.to_owned(),
                filesystem: None,
                readonly: false,
                data: String::new(),
            },
            |mount| Mounted { target: target.to_owned(), ..mount },
        );
        assert_eq!(
            target.is_dir(),
            mounted.filesystem.is_some(),
            "a directory is bound to a directory, a file to a file"
        );
        self.state().mounts.push(mounted);
        Ok(())
    }

    async fn make_readonly(&self, target: &Path, _: &MountOptions) -> Result<(), MountError> {
        let mut state = self.state();
        let mount = state.mounts.iter_mut().rev().find(|mount| mount.target == target);
        mount.unwrap().readonly = true;
        Ok(())
    }

    async fn is_claimed(&self, device: &Path) -> Result<bool, MountError> {
        let state = self.state();
        Ok(state.frozen.contains(device) || state.mounts.iter().any(|mount| mount.device == device))
    }

    async fn thaw(&self, target: &Path) -> Result<bool, MountError> {
        let device = self.top(target).unwrap().device;
        Ok(self.state().frozen.remove(&device))
    }

    async fn unmount(&self, target: &Path) -> Result<(), MountError> {
        let mut state = self.state();
        if !state.mount_holders.is_empty() {
            return Err(MountError::Busy { path: target.to_owned(), holders: state.mount_holders.clone() });
        }
        state.failed.remove(target);
        let top = state.mounts.iter().rposition(|mount| mount.target == target);
        state.mounts.remove(top.unwrap());
        Ok(())
    }

    async fn grow_filesystem(&self, device: &Path, target: &Path, _: Filesystem) -> Result<(), MountError> {
        let device_size = self.device_or_error(device)?.size_bytes;
        let mut state = self.state();
        state.growths += 1;
        if state.frozen.contains(device) {
            return Err(MountError::Frozen { path: target.to_owned(), waiting: Some(state.waiting.clone()) });
        }
        let mount = state.mounts.iter().find(|mount| mount.device == device);
        assert!(mount.is_some_and(|mount| !mount.readonly), "resize2fs needs a writable mount");
        state.contents.get_mut(device).unwrap().1 = device_size;
        Ok(())
    }

    async fn discard_free_blocks(&self, target: &Path, stop: &CancellationToken) -> Result<(), MountError> {
        self.discarding.send_replace(Some(target.to_owned()));
        let mut may_end = self.discard_may_end.subscribe();
        let ended = tokio::select! {
            _ended = may_end.wait_for(|may_end| *may_end) => "discarded",
            () = stop.cancelled() => "stopped",
        };
        assert!(self.top(target).is_some(), "it is unmounted later");
        self.state().discards.push(ended);
        self.discarding.send_replace(None);
        Ok(())
    }

    async fn filesystem_usage(&self, path: &Path) -> Result<FilesystemUsage, MountError> {
        let device = self.top(path).unwrap().device;
        let total_bytes = self.filesystem_bytes(&device);
        Ok(FilesystemUsage {
            total_bytes,
            used_bytes: total_bytes / 4,
            available_bytes: total_bytes / 2,
            total_inodes: 100,
            used_inodes: 11,
            free_inodes: 89,
        })
    }

    async fn filesystem_usages(&self, paths: Vec<PathBuf>) -> UsageBatch {
        let mut batch = UsageBatch::default();
        for path in paths {
            let hanging = self.state().hanging.get(&path).cloned();
            if let Some(hung_task) = hanging {
                batch.hung.push((path, hung_task));
            } else {
                let usage = self.filesystem_usage(&path).await.unwrap();
                batch.usages.push((path, usage));
            }
        }
        batch
    }

    async fn mounted_devices(&self) -> Result<HashMap<DeviceNumber, PathBuf>, MountError> {
        let mounts = self.mounts().into_iter().filter(|mount| mount.filesystem.is_some());
        Ok(mounts.filter_map(|mount| Some((self.device(&mount.device)?.number, mount.target))).collect())
    }

    async fn mount_points(&self) -> Result<HashSet<PathBuf>, MountError> {
        Ok(self.mounts().into_iter().map(|mount| mount.target).collect())
    }

    async fn limit_io(
        &self,
        pod: &str,
        device: DeviceNumber,
        requested: &IoLimits,
    ) -> Result<LimitsInForce, LimitError> {
        self.cgroups().limit_io(pod, device, requested)
    }

    async fn find_lost_limits(&self, expected: Vec<PodLimits>) -> Result<Vec<PodLimits>, LimitError> {
        Ok(self.cgroups().find_lost(expected))
    }

    async fn disk_statistics(&self) -> Result<HashMap<DeviceNumber, DiskStatistics>, MountError> {
        let state = self.state();
        let number = |minor| DeviceNumber { major: 253, minor };
        Ok(state.statistics.iter().map(|(&minor, &statistics)| (number(minor), statistics)).collect())
    }
}
