//! `NodePublishVolume`: mounts a filesystem, or binds a raw block volume, at the target path. Every step can be
//! interrupted and called again.

use std::path::{Path, PathBuf};

use linux_mount::{DeviceNumber, FILE_DEADLINE, MountOptions, Mounter, PathKind, run_blocking};
use topolvm_api::LogicalVolume;

use super::capability::Access;
use super::request::PublishVolume;
use super::volume::{Volume, WantedFilesystem};
use super::{Agent, CsiError, kubelet_paths};
use crate::target_path;

impl<M: Mounter> Agent<M> {
    /// Publishes a volume at the target path of the request, limits the I/O of the pod on it, and stores which pod that
    /// is. kubelet starts the pod's containers only after that.
    pub(super) async fn publish(&self, mut request: PublishVolume) -> Result<(), CsiError> {
        let (id, target, pod) = (request.id.clone(), request.target.clone(), request.pod.take());
        let (volume, device) = self.publish_volume(request).await?;
        if let Some(pod) = pod {
            self.io_limiter.limit_before_use(&volume, device, &pod).await;
            self.published_pods.insert(&id, &target, pod).await;
        }
        Ok(())
    }

    /// Publishes a volume, and returns its object and its device.
    async fn publish_volume(&self, request: PublishVolume) -> Result<(LogicalVolume, DeviceNumber), CsiError> {
        let PublishVolume { id, staging, target, access, exclusive, pod: _ } = request;
        if self.stages && staging.is_none() {
            return Err(CsiError::NoStagingPath(id));
        }
        self.access.mounter.check_shared(&target).await?;
        let staging = staging.filter(|_| self.stages);
        let (object, lv) = self.access.find_volume(&id).await?;
        let object = self.filesystems.preparation.load_record(object, &id, &access).await?;
        let opened = self.access.open_device(&object, &lv).await?;
        let device = opened.device;
        if device.readonly && !access.is_readonly() {
            return Err(CsiError::ReadOnlyDevice(id));
        }
        let mut others = self.mounts.find_other_targets(device.number, &target, staging.as_deref()).await?.into_iter();
        // CSI, NodePublishVolume: a volume for a single writer has one target path
        let is_kubelets = |other: &PathBuf| {
            kubelet_paths::is_staging_path(other) || kubelet_paths::is_device_map_path(&target, other)
        };
        if exclusive && let Some(other) = others.clone().find(|other| !is_kubelets(other)) {
            return Err(CsiError::PublishedElsewhere { id, other });
        }
        let volume = Volume { object: &object, lv: &lv, device, node: &opened.node, other: others.next() };
        match access {
            Access::Mount { filesystem, options, mkfs_options } => {
                let staging = self.find_bind_source(&volume, staging, &target).await?;
                let staging = staging.as_deref();
                let wanted = WantedFilesystem { filesystem, options: &options, mkfs_options: &mkfs_options, staging };
                self.filesystems.publish(&volume, &target, &wanted).await?;
            }
            Access::Block { readonly } => self.publish_block(&volume, &target, readonly).await?,
        }
        let number = volume.device.number;
        Ok((object, number))
    }

    /// Publishes a raw block volume: bind-mounts its device node to a file at the target path.
    async fn publish_block(&self, volume: &Volume<'_>, target: &Path, readonly: bool) -> Result<(), CsiError> {
        let taken = |found| CsiError::TargetTaken { target: target.to_owned(), found };
        if let Some(found) = run_blocking(FILE_DEADLINE, target, target_path::find_symlink).await? {
            return Err(taken(found));
        }
        match self.access.mounter.inspect_path(target).await? {
            // Nothing is opened, created or chmodded any more: that would go through to the device
            PathKind::BlockDevice(number) if number == volume.device.number => {}
            PathKind::BlockDevice(_) => return Err(taken("another device is published at this path")),
            PathKind::Directory => return Err(taken("it is a directory, but a block volume needs a file")),
            PathKind::Absent | PathKind::Other => {
                run_blocking(FILE_DEADLINE, target, target_path::create_file).await?;
                self.access.mounter.bind(volume.node, target).await?;
                if let Err(error) = self.access.check_leads_to(target, volume.device.number).await {
                    self.access.mounter.unmount(target).await?;
                    return Err(error);
                }
            }
        }
        if readonly
            && let Some(mount) = self.access.mounter.mounts_at(target).await?.last()
            && !mount.readonly
        {
            // Keeps the node's mode and owner as they are; the kernel lets a device be written through such a mount
            self.access.mounter.make_readonly(target, &MountOptions::default()).await?;
        }
        Ok(())
    }
}
