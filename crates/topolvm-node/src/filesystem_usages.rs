//! Measures the mounted filesystems of devices: where they are mounted by the kernel's table, and how full by
//! statfs(2). No device is opened.

use std::collections::HashMap;
use std::time::Duration;

use linux_mount::{DeviceNumber, FilesystemUsage, HungPaths, Mounter};
use tokio::time::timeout;

/// Deadline for each of the tables of the kernel.
pub(crate) const TABLE_DEADLINE: Duration = Duration::from_secs(2);

/// Measures mounted filesystems.
#[derive(Clone, Debug)]
pub(crate) struct FilesystemUsages<M> {
    pub(crate) hung_paths: HungPaths,
    pub(crate) mounter: M,
}

impl<M: Mounter> FilesystemUsages<M> {
    /// Measures the filesystems of these devices. One that is not mounted, or is not measured in time, is left out.
    pub(crate) async fn measure(
        &self,
        devices: impl Iterator<Item = DeviceNumber>,
    ) -> HashMap<DeviceNumber, FilesystemUsage> {
        let mounts = timeout(TABLE_DEADLINE, self.mounter.mounted_devices()).await;
        let mounts = mounts.ok().and_then(Result::ok).unwrap_or_default();
        let mounted = devices.filter_map(|number| Some((number, mounts.get(&number)?)));
        let mounted: Vec<_> = mounted.filter(|(_, path)| !self.hung_paths.is_hung(path)).collect();
        let batch = self.mounter.filesystem_usages(mounted.iter().map(|(_, path)| (*path).clone()).collect()).await;
        for (path, hung_task) in batch.hung {
            tracing::warn!(path = %path.display(), "the filesystem does not answer; its usage is not reported");
            self.hung_paths.insert(path, &hung_task);
        }
        let usages: HashMap<_, _> = batch.usages.into_iter().collect();
        mounted.into_iter().filter_map(|(number, path)| Some((number, *usages.get(path)?))).collect()
    }
}
