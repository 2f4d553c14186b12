//! `NodePublishVolume`: mounts a filesystem, or binds a raw block volume, at the target path. Every step can be
//! interrupted and called again.

use std::path::{Path, PathBuf};

use linux_mount::{
    DeviceNumber, FILE_DEADLINE, Filesystem, MkfsOptions, MountError, MountOptions, Mounter, PathKind, leaves_discard,
    run_blocking,
};
use topolvm_api::LogicalVolume;
use topolvm_runtime::error_chain;

use super::capability::Access;
use super::prepare::Prepared;
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
            if let Some(limiter) = &self.io_limiter {
                limiter.limit_before_use(&volume, device, &pod).await;
            }
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
        self.mounter.check_shared(&target).await?;
        let staging = staging.filter(|_| self.stages);
        let (object, lv) = self.find_volume(&id).await?;
        let object = self.load_filesystem_record(object, &id, &access).await?;
        let opened = self.open_device(&object, &lv).await?;
        let device = opened.device;
        if device.readonly && !access.is_readonly() {
            return Err(CsiError::ReadOnlyDevice(id));
        }
        let mut others = self.find_other_targets(device.number, &target, staging.as_deref()).await?.into_iter();
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
                self.publish_filesystem(&volume, &target, &wanted).await?;
            }
            Access::Block { readonly } => self.publish_block(&volume, &target, readonly).await?,
        }
        let number = volume.device.number;
        Ok((object, number))
    }

    /// Publishes a filesystem at a target path, or stages it: mounts it, records it, and grows it to the size of its
    /// device. A filesystem that is already mounted there is mounted again only if it has shut down.
    pub(super) async fn publish_filesystem(
        &self,
        volume: &Volume<'_>,
        target: &Path,
        wanted: &WantedFilesystem<'_>,
    ) -> Result<(), CsiError> {
        let WantedFilesystem { filesystem, options, .. } = *wanted;
        let prepared = if self.is_mounted_as_wanted(volume, target, wanted).await? {
            Prepared::Existing
        } else {
            self.mount_or_bind(volume, target, wanted).await?
        };
        if options.is_readonly() {
            return Ok(());
        }
        if prepared == Prepared::Formatted || !self.volumes.is_recorded_as(volume.object, filesystem) {
            // An earlier call may have been killed between the mount and the change of mode
            run_blocking(FILE_DEADLINE, target, target_path::set_shared_mode_if_new).await?;
            // The last step before the first pod gets the volume: from now on the filesystem is never recreated
            // automatically, and the pods own the mode of its root directory
            self.volumes.record_filesystem(volume.object, filesystem).await?;
        }
        // A snapshot or clone can be larger than its source, and a volume can have been expanded while no pod used it
        self.grow(volume.node, target, filesystem).await?;
        let is_left = |options: &MkfsOptions| leaves_discard(filesystem, options);
        if prepared == Prepared::Formatted && wanted.mkfs_options.as_ref().is_ok_and(is_left) {
            self.discards.push(target);
        }
        Ok(())
    }

    /// Returns whether the wanted filesystem is mounted at a target path; an error if another is. One that has shut
    /// down is unmounted.
    async fn is_mounted_as_wanted(
        &self,
        volume: &Volume<'_>,
        target: &Path,
        wanted: &WantedFilesystem<'_>,
    ) -> Result<bool, CsiError> {
        let Some(mount) = self.mounter.mounts_at(target).await?.pop() else { return Ok(false) };
        let (id, target) = (volume.lv.name.clone(), target.to_owned());
        if mount.device != volume.device.number {
            Err(CsiError::TargetTaken { target, found: "something else is mounted on it" })
        } else if mount.filesystem != wanted.filesystem.as_str() {
            Err(CsiError::OtherFilesystem { id, target, found: mount.filesystem })
        } else if mount.readonly != wanted.options.is_readonly() {
            Err(CsiError::OtherMode { id, target })
        } else if self.answers(&target).await? {
            Ok(true)
        } else {
            self.unmount_all(&id, &target).await?;
            Ok(false)
        }
    }

    /// Returns whether a mounted filesystem answers. One that has shut down after errors of its disk, such as a full
    /// thin pool, gives nothing but errors until it is unmounted.
    async fn answers(&self, target: &Path) -> Result<bool, CsiError> {
        match self.mounter.inspect_path(target).await {
            Ok(_) => Ok(true),
            Err(error @ MountError::Io { .. }) => {
                tracing::warn!(error = error_chain(&error), "the mounted filesystem returns errors; remounting it");
                Ok(false)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Mounts the filesystem at a target path, or binds it from the staging path if it is staged.
    async fn mount_or_bind(
        &self,
        volume: &Volume<'_>,
        target: &Path,
        wanted: &WantedFilesystem<'_>,
    ) -> Result<Prepared, CsiError> {
        if let Some(found) = run_blocking(FILE_DEADLINE, target, target_path::create_directory).await? {
            return Err(CsiError::TargetTaken { target: target.to_owned(), found });
        }
        match wanted.staging {
            Some(staging) => self.bind_staged(volume, staging, target, wanted).await,
            None => self.mount_filesystem(volume, target, wanted).await,
        }
    }

    /// Binds a staged filesystem to a target path. One that has shut down is first mounted again at the staging path.
    async fn bind_staged(
        &self,
        volume: &Volume<'_>,
        staging: &Path,
        target: &Path,
        wanted: &WantedFilesystem<'_>,
    ) -> Result<Prepared, CsiError> {
        let mut prepared = Prepared::Existing;
        let is_readonly = self.mounter.mounts_at(staging).await?.last().is_some_and(|mount| mount.readonly);
        if is_readonly && !wanted.options.is_readonly() {
            return Err(CsiError::ReadOnlyElsewhere { id: volume.lv.name.clone(), other: staging.to_owned() });
        }
        if !self.answers(staging).await? {
            let options = wanted.options.clone().in_mode(is_readonly);
            self.unmount_all(&volume.lv.name, staging).await?;
            prepared = self
                .mount_filesystem(volume, staging, &WantedFilesystem { options: &options, staging: None, ..*wanted })
                .await?;
        }
        if !is_readonly && wanted.options.is_readonly() {
            self.bind_readonly(volume, staging, target, wanted.options).await?;
        } else {
            self.mounter.bind(staging, target).await?;
        }
        Ok(prepared)
    }

    /// Prepares and mounts the filesystem of a device. A reader in addition to a writer gets a read-only bind of its
    /// mount.
    async fn mount_filesystem(
        &self,
        volume: &Volume<'_>,
        target: &Path,
        wanted: &WantedFilesystem<'_>,
    ) -> Result<Prepared, CsiError> {
        let WantedFilesystem { filesystem, options, .. } = *wanted;
        self.thaw_unmounted(volume, target, filesystem).await?;
        let prepared = self.prepare_filesystem(volume, wanted).await?;
        if let Some(other) = &volume.other {
            let mounts = self.mounter.mounts_at(other).await?;
            if mounts.last().is_some_and(|mount| mount.device != volume.device.number) {
                return Err(CsiError::UsedRaw { id: volume.lv.name.clone(), other: other.clone() });
            }
            // The kernel gives a filesystem to be read or written as a whole; a mount of it can only be less than that
            match (mounts.last().is_some_and(|mount| mount.filesystem_readonly), options.is_readonly()) {
                (false, true) => {
                    self.bind_readonly(volume, other, target, options).await?;
                    return Ok(prepared);
                }
                (true, false) => {
                    return Err(CsiError::ReadOnlyElsewhere { id: volume.lv.name.clone(), other: other.clone() });
                }
                (true, true) | (false, false) => {}
            }
        }
        let mut options = options.clone();
        if let Some(option) = filesystem.duplicate_uuid_option() {
            options = options.with(option);
        }
        if volume.device.readonly {
            options = options.with(filesystem.readonly_device_option());
        }
        self.mount_device(volume, target, filesystem, &options).await?;
        let was_opened = prepared == Prepared::Existing && self.volumes.recorded_filesystem(volume.object).is_some();
        if !options.is_readonly() && !was_opened {
            run_blocking(FILE_DEADLINE, target, target_path::set_shared_mode).await?;
        }
        Ok(prepared)
    }

    /// Mounts a device by the path of its LV, which then appears in the mount table. The link must lead to the device
    /// before and after that.
    pub(super) async fn mount_device(
        &self,
        volume: &Volume<'_>,
        target: &Path,
        filesystem: Filesystem,
        options: &MountOptions,
    ) -> Result<(), CsiError> {
        let (path, wanted) = (&volume.lv.path, volume.device.number);
        self.check_leads_to(path, wanted).await?;
        self.mounter.mount(path, target, filesystem, options).await?;
        let found = self.mounter.mounts_at(target).await?.last().map(|mount| mount.device);
        if found == Some(wanted) {
            return Ok(());
        }
        self.mounter.unmount(target).await?;
        Err(MountError::WrongDevice { path: path.clone(), found, wanted }.into())
    }

    /// Bind-mounts a path to another, read-only.
    async fn bind_readonly(
        &self,
        volume: &Volume<'_>,
        source: &Path,
        target: &Path,
        options: &MountOptions,
    ) -> Result<(), CsiError> {
        self.mounter.bind(source, target).await?;
        if let Err(error) = self.mounter.make_readonly(target, options).await {
            // The next call would find a mount that can be written to
            self.unmount_all(&volume.lv.name, target).await?;
            return Err(error.into());
        }
        Ok(())
    }

    /// Publishes a raw block volume: bind-mounts its device node to a file at the target path.
    async fn publish_block(&self, volume: &Volume<'_>, target: &Path, readonly: bool) -> Result<(), CsiError> {
        let taken = |found| CsiError::TargetTaken { target: target.to_owned(), found };
        if let Some(found) = run_blocking(FILE_DEADLINE, target, target_path::find_symlink).await? {
            return Err(taken(found));
        }
        match self.mounter.inspect_path(target).await? {
            // Nothing is opened, created or chmodded any more: that would go through to the device
            PathKind::BlockDevice(number) if number == volume.device.number => {}
            PathKind::BlockDevice(_) => return Err(taken("another device is published at this path")),
            PathKind::Directory => return Err(taken("it is a directory, but a block volume needs a file")),
            PathKind::Absent | PathKind::Other => {
                run_blocking(FILE_DEADLINE, target, target_path::create_file).await?;
                self.mounter.bind(volume.node, target).await?;
                if let Err(error) = self.check_leads_to(target, volume.device.number).await {
                    self.mounter.unmount(target).await?;
                    return Err(error);
                }
            }
        }
        if readonly
            && let Some(mount) = self.mounter.mounts_at(target).await?.last()
            && !mount.readonly
        {
            // Keeps the node's mode and owner as they are; the kernel lets a device be written through such a mount
            self.mounter.make_readonly(target, &MountOptions::default()).await?;
        }
        Ok(())
    }
}
