//! The [`Mounter`] of the real machine: mount(2), /proc, and the programs of filesystems.

use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use tokio_util::sync::CancellationToken;
use topolvm_api::IoLimits;

use super::blocking::{FILE_DEADLINE, run_blocking};
use super::cgroups::Cgroups;
use super::command::{CommandLine, Programs, failed_command};
use super::{
    BlockDevice, Contents, DeviceNumber, DeviceUse, DiskStatistics, FilesystemUsage, LimitError, LimitsInForce,
    MkfsOptions, Mount, MountError, MountOptions, Mounter, OpenDevice, PathKind, PodLimits, UsageBatch, device,
    device_holders, device_uses, disk_statistics, filesystem_commands, freeze, host_mounts, mount_holders, mount_table,
    usage_batch,
};
use crate::Filesystem;

/// Deadline of a mount, which may replay a journal, and of an unmount, which may write back what is dirty.
const MOUNT: Duration = Duration::from_mins(2);

/// Exit status of `blkid` if it found nothing (blkid(8), "RETURN CODE").
const BLKID_NOTHING: i32 = 2;
/// Exit status of `blkid` if it found more than one signature.
const BLKID_AMBIVALENT: i32 = 8;

/// Mounts and formats on the machine that this process runs on.
#[derive(Clone, Debug)]
pub struct SystemMounter {
    programs: Programs,
    cgroups: Cgroups,
}

impl SystemMounter {
    /// Creates the mounter, and resolves the paths of the programs that it needs.
    pub fn new() -> Self {
        Self { programs: Programs::find(&filesystem_commands::PROGRAMS), cgroups: Cgroups::of_machine() }
    }

    /// Sets the cgroup in which the programs of filesystems run, by its file `cgroup.procs`, and kills those that an
    /// earlier agent has left in it. No other agent on the node may use the cgroup.
    #[must_use]
    pub fn in_cgroup(self, processes: PathBuf) -> Self {
        Self { programs: self.programs.in_cgroup(processes), ..self }
    }

    /// Runs `blkid`; `None` if it finds nothing.
    async fn probe(&self, command: &CommandLine) -> Result<Option<Contents>, MountError> {
        let output = self.programs.run(command).await?;
        match output.status.code() {
            Some(0) => Ok(Some(Contents::parse(&String::from_utf8_lossy(&output.stdout)))),
            Some(BLKID_NOTHING) => Ok(None),
            Some(BLKID_AMBIVALENT) => Ok(Some(Contents::Other("signatures of more than one kind".to_owned()))),
            _ => Err(failed_command(command, &output)),
        }
    }
}

impl Default for SystemMounter {
    fn default() -> Self {
        Self::new()
    }
}

impl Mounter for SystemMounter {
    async fn inspect_path(&self, path: &Path) -> Result<PathKind, MountError> {
        run_blocking(FILE_DEADLINE, path, device::inspect_path).await
    }

    async fn mounts_at(&self, target: &Path) -> Result<Vec<Mount>, MountError> {
        run_blocking(FILE_DEADLINE, target, mount_table::mounts_at).await
    }

    async fn check_shared(&self, target: &Path) -> Result<(), MountError> {
        run_blocking(FILE_DEADLINE, target, |target| host_mounts::check_shared(Path::new(host_mounts::HOST), target))
            .await
    }

    async fn check_unmounted(&self, target: &Path) -> Result<(), MountError> {
        run_blocking(FILE_DEADLINE, target, |target| host_mounts::check_unmounted(Path::new(host_mounts::HOST), target))
            .await
    }

    async fn unmount_repeated(&self, directory: &Path) -> Result<(), MountError> {
        host_mounts::unmount_repeated(Path::new(host_mounts::HOST), directory).await
    }

    fn count_stacked_mounts(&self, directory: &Path) -> usize {
        host_mounts::count_stacked_mounts(Path::new(host_mounts::HOST), directory)
    }

    async fn other_targets(&self, device: DeviceNumber, target: &Path) -> Result<Vec<PathBuf>, MountError> {
        run_blocking(FILE_DEADLINE, target, move |target| mount_table::find_other_targets(device, target)).await
    }

    async fn find_device_uses(&self, device: DeviceNumber, lv: &Path) -> Result<Vec<DeviceUse>, MountError> {
        run_blocking(FILE_DEADLINE, lv, move |lv| device_uses::find_device_uses(device, lv)).await
    }

    async fn find_device_holders(&self, device: DeviceNumber, lv: &Path) -> Result<Vec<DeviceUse>, MountError> {
        run_blocking(FILE_DEADLINE, lv, move |lv| device_holders::find_device_holders(device, lv)).await
    }

    async fn block_device(&self, path: &Path) -> Result<BlockDevice, MountError> {
        run_blocking(FILE_DEADLINE, path, |path| device::open(path).map(|(_, device)| device)).await
    }

    async fn open_device(&self, path: &Path, number: DeviceNumber) -> Result<OpenDevice, MountError> {
        run_blocking(FILE_DEADLINE, path, move |path| device::open_device(path, number)).await
    }

    async fn probe_contents(&self, device: &Path, recorded: Option<Filesystem>) -> Result<Contents, MountError> {
        // blkid also exits with "nothing found" for a device that it cannot open or read; only a device that can be
        // read where signatures lie may be taken for blank.
        let is_zero = run_blocking(FILE_DEADLINE, device, device::has_no_signature_bytes).await?;
        let mut found = None;
        if let Some(filesystem) = recorded {
            let is_it = |found: &Contents| *found == Contents::Filesystem(filesystem.to_string());
            found = self.probe(&filesystem_commands::blkid_type(device, filesystem)).await?.filter(is_it);
        }
        if found.is_none() {
            found = self.probe(&filesystem_commands::blkid_filesystems(device)).await?;
        }
        if found.is_none() {
            found = self.probe(&filesystem_commands::blkid(device)).await?;
        }
        match found {
            Some(Contents::Filesystem(kind))
                if kind == Filesystem::Xfs.as_str()
                    && run_blocking(FILE_DEADLINE, device, device::xfs_mkfs_is_incomplete).await? =>
            {
                // It would remain a damaged filesystem forever
                tracing::warn!(device = %device.display(), "mkfs.xfs was interrupted; treating the volume as blank");
                Ok(Contents::Blank)
            }
            Some(found) => Ok(found),
            None if is_zero => Ok(Contents::Blank),
            None => Ok(Contents::Unrecognized),
        }
    }

    async fn format(&self, device: &Path, filesystem: Filesystem, options: &MkfsOptions) -> Result<(), MountError> {
        let make = filesystem_commands::mkfs(device, filesystem, options);
        tracing::info!(command = %make, "creating a filesystem");
        // Signatures that blkid does not show can still confuse it after mkfs
        self.programs.run_ok(&filesystem_commands::wipefs(device)).await?;
        self.programs.run_ok(&make).await.map(drop)
    }

    async fn check_filesystem(&self, device: &Path, filesystem: Filesystem) -> Result<(), MountError> {
        let Some(command) = filesystem_commands::fsck(device, filesystem) else { return Ok(()) };
        let output = self.programs.run(&command).await?;
        filesystem_commands::check_fsck_output(&command, &output, device, filesystem)
    }

    async fn set_unique_uuid(&self, device: &Path, filesystem: Filesystem, id: &str) -> Result<(), MountError> {
        match filesystem {
            Filesystem::Ext4 | Filesystem::Xfs => return Ok(()),
            Filesystem::Btrfs => {}
        }
        let (_, found) = run_blocking(FILE_DEADLINE, device, device::read_btrfs).await?;
        if found.uuid == id {
            return Ok(());
        }
        tracing::info!(device = %device.display(), found = found.uuid, id, "changing the UUID of the copied btrfs");
        // btrfstune commits a new generation, to which the log would not belong: no kernel could mount it
        if found.has_log_tree {
            // What the kernel has seen on an earlier device of the same number would keep it from giving the copy an
            // identity for the time of this mount
            let forgotten = self.programs.run(&filesystem_commands::forget_btrfs_device(device)).await?;
            tracing::debug!(device = %device.display(), ?forgotten, "the kernel forgot the btrfs device");
            run_blocking(MOUNT, device, device::replay_btrfs_log).await?;
        }
        run_blocking(FILE_DEADLINE, device, device::check_unused).await?;
        self.programs.run_ok(&filesystem_commands::set_btrfs_uuid(device, id)).await.map(drop)
    }

    async fn mount(
        &self,
        device: &Path,
        target: &Path,
        filesystem: Filesystem,
        options: &MountOptions,
    ) -> Result<(), MountError> {
        let device = device.to_owned();
        let options = options.clone();
        run_blocking(MOUNT, target, move |target| {
            let data = CString::new(options.data).map_err(|error| MountError::io("mount on", target, error))?;
            let mounted = rustix::mount::mount(&device, target, filesystem.as_str(), options.flags, data.as_c_str());
            mounted.map_err(|error| match error {
                // "Structure needs cleaning" and "Bad message": the errors of a filesystem that has detected its damage
                Errno::UCLEAN | Errno::BADMSG => {
                    MountError::Damaged { device, filesystem, report: format!("kernel error: {error}") }
                }
                // blkid has found this type on the device
                Errno::INVAL => {
                    MountError::io("mount (wrong mount options, or a damaged filesystem) on", target, error)
                }
                error => MountError::io("mount on", target, error),
            })
        })
        .await
    }

    async fn bind(&self, source: &Path, target: &Path) -> Result<(), MountError> {
        let source = source.to_owned();
        run_blocking(MOUNT, target, move |target| {
            rustix::mount::mount_bind(&source, target).map_err(|error| MountError::io("bind to", target, error))
        })
        .await
    }

    async fn make_readonly(&self, target: &Path, options: &MountOptions) -> Result<(), MountError> {
        let flags = options.flags | MountFlags::BIND | MountFlags::RDONLY;
        run_blocking(MOUNT, target, move |target| {
            rustix::mount::mount_remount(target, flags, c"")
                .map_err(|error| MountError::io("make read-only", target, error))
        })
        .await
    }

    async fn is_claimed(&self, device: &Path) -> Result<bool, MountError> {
        run_blocking(FILE_DEADLINE, device, device::is_claimed).await
    }

    async fn thaw(&self, target: &Path) -> Result<bool, MountError> {
        let command = filesystem_commands::thaw(target);
        let output = self.programs.run(&command).await?;
        filesystem_commands::check_thaw_output(&command, &output)
    }

    async fn unmount(&self, target: &Path) -> Result<(), MountError> {
        run_blocking(MOUNT, target, |target| {
            rustix::mount::unmount(target, UnmountFlags::NOFOLLOW).map_err(|error| match error {
                Errno::BUSY => mount_holders::busy(target),
                error => MountError::io("unmount", target, error),
            })
        })
        .await
    }

    async fn grow_filesystem(&self, device: &Path, target: &Path, filesystem: Filesystem) -> Result<(), MountError> {
        let can_grow = match filesystem {
            // resize2fs takes its time to find nothing to do
            Filesystem::Ext4 => run_blocking(FILE_DEADLINE, device, device::ext4_can_grow).await?,
            Filesystem::Btrfs => run_blocking(FILE_DEADLINE, device, device::btrfs_can_grow).await?,
            Filesystem::Xfs => true,
        };
        if can_grow {
            freeze::run_unless_frozen(&self.programs, &filesystem_commands::grow(device, target, filesystem), target)
                .await
        } else {
            Ok(())
        }
    }

    async fn discard_free_blocks(&self, target: &Path, stop: &CancellationToken) -> Result<(), MountError> {
        let command = filesystem_commands::fstrim(target);
        match self.programs.run_until(&command, stop.cancelled()).await? {
            Some(output) if !output.status.success() => Err(failed_command(&command, &output)),
            Some(_) | None => Ok(()),
        }
    }

    async fn filesystem_usage(&self, path: &Path) -> Result<FilesystemUsage, MountError> {
        run_blocking(FILE_DEADLINE, path, device::filesystem_usage).await
    }

    async fn filesystem_usages(&self, paths: Vec<PathBuf>) -> UsageBatch {
        usage_batch::measure_all(paths, usage_batch::PATIENCE, device::filesystem_usage).await
    }

    async fn mounted_devices(&self) -> Result<HashMap<DeviceNumber, PathBuf>, MountError> {
        run_blocking(FILE_DEADLINE, Path::new("/"), |_| mount_table::list_mounted_devices()).await
    }

    async fn mount_points(&self) -> Result<HashSet<PathBuf>, MountError> {
        run_blocking(FILE_DEADLINE, Path::new("/"), |_| mount_table::list_mount_points()).await
    }

    async fn limit_io(
        &self,
        pod: &str,
        device: DeviceNumber,
        requested: &IoLimits,
    ) -> Result<LimitsInForce, LimitError> {
        let (cgroups, pod, requested) = (self.cgroups.clone(), pod.to_owned(), requested.clone());
        run_blocking(FILE_DEADLINE, Path::new("/sys/fs/cgroup"), move |_| Ok(cgroups.limit(&pod, device, &requested)))
            .await?
    }

    async fn find_lost_limits(&self, expected: Vec<PodLimits>) -> Result<Vec<PodLimits>, LimitError> {
        let cgroups = self.cgroups.clone();
        run_blocking(FILE_DEADLINE, Path::new("/sys/fs/cgroup"), move |_| Ok(cgroups.find_lost(expected))).await?
    }

    async fn disk_statistics(&self) -> Result<HashMap<DeviceNumber, DiskStatistics>, MountError> {
        run_blocking(FILE_DEADLINE, Path::new("/"), |_| disk_statistics::read()).await
    }
}
