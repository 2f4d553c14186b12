//! The mounts of volumes: binds, unmounts and inspects them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use linux_mount::{DeviceNumber, MountError, MountOptions, Mounter};
use topolvm_runtime::error_chain;

use super::CsiError;
use super::discard_queue::DiscardQueue;
use super::freeze::FrozenFilesystems;
use super::volume::Volume;
use super::volume_access::VolumeAccess;

/// More layers of mounts at a path than kubelet's retries ever stack.
const MAX_LAYERS: usize = 64;

/// The mounts of the volumes of a node.
#[derive(Debug)]
pub(super) struct Mounts<M> {
    pub(super) access: Arc<VolumeAccess<M>>,
    pub(super) frozen: FrozenFilesystems<M>,
    /// New filesystems whose free blocks are to be discarded.
    pub(super) discards: DiscardQueue,
}

impl<M: Mounter> Mounts<M> {
    /// Makes it for the volumes of a node.
    pub(super) fn new(access: Arc<VolumeAccess<M>>) -> Self {
        Self { frozen: FrozenFilesystems::new(Arc::clone(&access)), access, discards: DiscardQueue::default() }
    }

    /// Returns whether a mounted filesystem answers. One that has shut down after errors of its disk, such as a full
    /// thin pool, gives nothing but errors until it is unmounted.
    pub(super) async fn answers(&self, target: &Path) -> Result<bool, CsiError> {
        match self.access.mounter.inspect_path(target).await {
            Ok(_) => Ok(true),
            Err(error @ MountError::Io { .. }) => {
                tracing::warn!(error = error_chain(&error), "the mounted filesystem returns errors; remounting it");
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Bind-mounts a path to another, read-only.
    pub(super) async fn bind_readonly(
        &self,
        volume: &Volume<'_>,
        source: &Path,
        target: &Path,
        options: &MountOptions,
    ) -> Result<(), CsiError> {
        self.access.mounter.bind(source, target).await?;
        if let Err(error) = self.access.mounter.make_readonly(target, options).await {
            // The next call would find a mount that can be written to
            self.unmount_all(&volume.lv.name, target).await?;
            return Err(error.into());
        }
        Ok(())
    }

    /// Thaws the filesystem at a path and unmounts all layers there. Fails when something stays mounted there on the
    /// node: the kubelet, once it has a success, never asks again. The mount table is read and not the path: a
    /// filesystem whose disk has failed answers every access with an error.
    pub(super) async fn unmount_all(&self, id: &str, target: &Path) -> Result<(), CsiError> {
        self.frozen.thaw_before_unmount(id, target).await;
        self.discards.cancel(target).await;
        for _ in 0..MAX_LAYERS {
            if self.access.mounter.mounts_at(target).await?.is_empty() {
                break;
            }
            self.access.mounter.unmount(target).await?;
        }
        Ok(self.access.mounter.check_unmounted(target).await?)
    }

    /// Finds the paths other than `target` and the staging path at which a volume is mounted or bound.
    pub(super) async fn find_other_targets(
        &self,
        device: DeviceNumber,
        target: &Path,
        staging: Option<&Path>,
    ) -> Result<Vec<PathBuf>, CsiError> {
        let mut others = self.access.mounter.other_targets(device, target).await?;
        if let Some(staging) = staging {
            // The mount table has other names for paths with links in them
            let unstaged = self.access.mounter.other_targets(device, staging).await?;
            others.retain(|other| unstaged.contains(other));
        }
        Ok(others)
    }
}
