//! Thaws filesystems that a backup tool has left frozen (fsfreeze(8)). The kernel unmounts a frozen filesystem and
//! keeps it, with its device in use, and without a mount nothing thaws it any more.

use std::path::Path;
use std::sync::Arc;

use linux_mount::{Filesystem, HungPaths, MountError, MountOptions, Mounter};
use topolvm_runtime::error_chain;

use super::CsiError;
use super::volume::Volume;
use super::volume_access::VolumeAccess;

/// Thaws filesystems, and grows them unless they are frozen.
#[derive(Debug)]
pub(super) struct FrozenFilesystems<M> {
    pub(super) access: Arc<VolumeAccess<M>>,
    /// Paths at which the growth of a filesystem waits until it is thawed.
    growths: HungPaths,
}

impl<M: Mounter> FrozenFilesystems<M> {
    /// Makes it for the volumes of a node.
    pub(super) fn new(access: Arc<VolumeAccess<M>>) -> Self {
        Self { access, growths: HungPaths::default() }
    }

    /// Thaws the filesystem that is mounted at a path before it is unmounted there, if it is mounted nowhere else:
    /// until then the tool that has frozen it may be at work. A failure is only logged, because a pod must be able to
    /// end also when its disk is dead.
    pub(super) async fn thaw_before_unmount(&self, id: &str, target: &Path) {
        let thawed = async {
            let Some(mount) = self.access.mounter.mounts_at(target).await?.pop() else { return Ok(false) };
            // A bound device node lies in a filesystem that is no volume's
            let is_volume = Filesystem::parse(&mount.filesystem).is_ok();
            if !is_volume || !self.access.mounter.other_targets(mount.device, target).await?.is_empty() {
                return Ok(false);
            }
            self.access.mounter.thaw(target).await
        };
        match thawed.await {
            Ok(true) => self.report_thaw(id, "before it was unmounted").await,
            Ok(false) => {}
            Err(error) => tracing::debug!(volume = id, error = error_chain(&error), "cannot thaw the filesystem"),
        }
    }

    /// Thaws a filesystem that was frozen when it was unmounted, so that the device can be checked and mounted. The
    /// kernel gives the next mount of the device the same, frozen filesystem.
    pub(super) async fn thaw_unmounted(
        &self,
        volume: &Volume<'_>,
        target: &Path,
        filesystem: Filesystem,
    ) -> Result<(), CsiError> {
        if volume.other.is_some() || !self.access.mounter.is_claimed(volume.node).await? {
            return Ok(());
        }
        // The same filesystem is only given to a mount that is read-only or writable like the first one
        for readonly in [false, true] {
            let mut options = MountOptions::default().in_mode(readonly);
            if let Some(option) = filesystem.duplicate_uuid_option() {
                options = options.with(option);
            }
            match self.access.mount_device(volume, target, filesystem, &options).await {
                Ok(()) => {
                    let thawed = self.access.mounter.thaw(target).await;
                    self.access.mounter.unmount(target).await?;
                    if thawed? {
                        self.report_thaw(&volume.lv.name, "before it was mounted again").await;
                    }
                    return Ok(());
                }
                Err(error) => {
                    let (volume, error) = (&volume.lv.name, error_chain(&error));
                    tracing::debug!(volume, error, "cannot mount the device, which is in use, to thaw its filesystem");
                }
            }
        }
        Ok(())
    }

    /// Grows the filesystem that is mounted at a path. While an earlier growth waits until the filesystem is thawed,
    /// no other begins.
    pub(super) async fn grow(&self, node: &Path, target: &Path, filesystem: Filesystem) -> Result<(), MountError> {
        if self.growths.is_hung(target) {
            return Err(MountError::Frozen { path: target.to_owned(), waiting: None });
        }
        let grown = self.access.mounter.grow_filesystem(node, target, filesystem).await;
        if let Err(MountError::Frozen { path, waiting: Some(waiting) }) = &grown {
            self.growths.insert(path.clone(), waiting);
        }
        grown
    }

    /// Logs and publishes that the filesystem of a volume was thawed.
    async fn report_thaw(&self, id: &str, when: &str) {
        let message = format!(
            "the filesystem was frozen (fsfreeze), and topolvm-node thawed it {when}: a backup tool ended without \
             thawing it, or still copies the volume, whose files can change now; configure the tool to thaw the \
             filesystems that it freezes"
        );
        tracing::warn!(volume = id, message, "thawed a filesystem");
        if let Ok(volume) = self.access.volumes.find(id).await {
            self.access.volumes.events.filesystem_thawed(&volume, &message).await;
        }
    }
}
