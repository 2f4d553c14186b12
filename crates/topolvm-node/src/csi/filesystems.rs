//! Publishes filesystems at target and staging paths: mounts them, or binds them from the staging path.

use std::path::Path;
use std::sync::Arc;

use linux_mount::{FILE_DEADLINE, MkfsOptions, Mounter, leaves_discard, run_blocking};

use super::CsiError;
use super::mounts::Mounts;
use super::prepare::{FilesystemPreparation, Prepared};
use super::volume::{Volume, WantedFilesystem};
use super::volume_access::VolumeAccess;
use crate::target_path;

/// The filesystems of the volumes of a node.
#[derive(Debug)]
pub(super) struct Filesystems<M> {
    pub(super) access: Arc<VolumeAccess<M>>,
    pub(super) mounts: Arc<Mounts<M>>,
    pub(super) preparation: FilesystemPreparation<M>,
}

impl<M: Mounter> Filesystems<M> {
    /// Publishes a filesystem at a target path, or stages it: mounts it, records it, and grows it to the size of its
    /// device. A filesystem that is already mounted there is mounted again only if it has shut down.
    pub(super) async fn publish(
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
        if prepared == Prepared::Formatted || !self.access.volumes.is_recorded_as(volume.object, filesystem) {
            // An earlier call may have been killed between the mount and the change of mode
            run_blocking(FILE_DEADLINE, target, target_path::set_shared_mode_if_new).await?;
            // The last step before the first pod gets the volume: from now on the filesystem is never recreated
            // automatically, and the pods own the mode of its root directory
            self.access.volumes.record_filesystem(volume.object, filesystem).await?;
        }
        // A snapshot or clone can be larger than its source, and a volume can have been expanded while no pod used it
        self.mounts.frozen.grow(volume.node, target, filesystem).await?;
        let is_left = |options: &MkfsOptions| leaves_discard(filesystem, options);
        if prepared == Prepared::Formatted && wanted.mkfs_options.as_ref().is_ok_and(is_left) {
            self.mounts.discards.push(target);
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
        let Some(mount) = self.access.mounter.mounts_at(target).await?.pop() else { return Ok(false) };
        let (id, target) = (volume.lv.name.clone(), target.to_owned());
        if mount.device != volume.device.number {
            Err(CsiError::TargetTaken { target, found: "something else is mounted on it" })
        } else if mount.filesystem != wanted.filesystem.as_str() {
            Err(CsiError::OtherFilesystem { id, target, found: mount.filesystem })
        } else if mount.readonly != wanted.options.is_readonly() {
            Err(CsiError::OtherMode { id, target })
        } else if self.mounts.answers(&target).await? {
            Ok(true)
        } else {
            self.mounts.unmount_all(&id, &target).await?;
            Ok(false)
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
        let is_readonly = self.access.mounter.mounts_at(staging).await?.last().is_some_and(|mount| mount.readonly);
        if is_readonly && !wanted.options.is_readonly() {
            return Err(CsiError::ReadOnlyElsewhere { id: volume.lv.name.clone(), other: staging.to_owned() });
        }
        if !self.mounts.answers(staging).await? {
            let options = wanted.options.clone().in_mode(is_readonly);
            self.mounts.unmount_all(&volume.lv.name, staging).await?;
            prepared = self
                .mount_filesystem(volume, staging, &WantedFilesystem { options: &options, staging: None, ..*wanted })
                .await?;
        }
        if !is_readonly && wanted.options.is_readonly() {
            self.mounts.bind_readonly(volume, staging, target, wanted.options).await?;
        } else {
            self.access.mounter.bind(staging, target).await?;
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
        self.mounts.frozen.thaw_unmounted(volume, target, filesystem).await?;
        let prepared = self.preparation.prepare(volume, wanted).await?;
        if let Some(other) = &volume.other {
            let mounts = self.access.mounter.mounts_at(other).await?;
            if mounts.last().is_some_and(|mount| mount.device != volume.device.number) {
                return Err(CsiError::UsedRaw { id: volume.lv.name.clone(), other: other.clone() });
            }
            // The kernel gives a filesystem to be read or written as a whole; a mount of it can only be less than that
            match (mounts.last().is_some_and(|mount| mount.filesystem_readonly), options.is_readonly()) {
                (false, true) => {
                    self.mounts.bind_readonly(volume, other, target, options).await?;
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
        self.access.mount_device(volume, target, filesystem, &options).await?;
        let was_opened =
            prepared == Prepared::Existing && self.access.volumes.recorded_filesystem(volume.object).is_some();
        if !options.is_readonly() && !was_opened {
            run_blocking(FILE_DEADLINE, target, target_path::set_shared_mode).await?;
        }
        Ok(prepared)
    }
}
