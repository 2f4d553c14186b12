//! Finds the volume of an id, opens its device, and mounts it: what the calls of the Node service share.

use std::path::Path;

use linux_mount::{DeviceNumber, Filesystem, MountError, MountOptions, Mounter, OpenDevice, PathKind};
use lvmd_client::{Lv, LvmdClient};
use topolvm_api::LogicalVolume;

use super::CsiError;
use super::volume::Volume;
use crate::volumes::{LookupError, Volumes};

/// The volumes of the node: their objects, their LVs, and the machine.
#[derive(Debug)]
pub(super) struct VolumeAccess<M> {
    pub(super) volumes: Volumes,
    pub(super) lvmd: LvmdClient,
    pub(super) mounter: M,
}

impl<M: Mounter> VolumeAccess<M> {
    /// Finds the LogicalVolume object and the LV of a volume id.
    pub(super) async fn find_volume(&self, id: &str) -> Result<(LogicalVolume, Lv), CsiError> {
        tracing::Span::current().record("volume", id);
        let volume = match self.volumes.find(id).await {
            Err(error @ LookupError::Unknown { .. }) => return Err(self.check_lv(id, error).await),
            found => found?,
        };
        let lv = self.lvmd.find(id, &volume.spec.device_class).await?;
        Ok((volume, lv.ok_or_else(|| CsiError::NoLv(id.to_owned()))?))
    }

    /// Checks whether the LV of a volume without a LogicalVolume exists, and returns the matching error.
    async fn check_lv(&self, id: &str, error: LookupError) -> CsiError {
        // With a name lvmd searches all its volume groups
        match self.lvmd.find(id, "").await {
            Ok(Some(lv)) => CsiError::ObjectGone { lv: lv.path, error },
            Ok(None) => CsiError::NeitherObjectNorLv(error),
            Err(_) => error.into(),
        }
    }

    /// Opens the device of an LV, and activates the LV first if it is not active, for example after a boot of a machine
    /// without automatic activation. The path that LVM reports is a link, and is only trusted while it leads to the
    /// device number that lvmd reports: where udev has stopped, it can lead to another volume.
    pub(super) async fn open_device(&self, volume: &LogicalVolume, lv: &Lv) -> Result<OpenDevice, CsiError> {
        if let Some(number) = lv.number {
            match self.mounter.open_device(&lv.path, number).await {
                Err(MountError::NoDevice(_)) => {}
                opened => return Ok(opened?),
            }
        }
        tracing::info!(volume = lv.name, path = %lv.path.display(), "activating the logical volume");
        // The protocol has no call for it. lvmd activates what it is asked to work on; growing to the present size
        // changes nothing else, and can make nothing that has just been removed
        if let Err(error) = self.lvmd.resize(&lv.name, &volume.spec.device_class, lv.size_bytes).await {
            tracing::warn!(volume = lv.name, error = error.detail(), "lvmd failed to activate the logical volume");
        }
        let active = self.lvmd.find(&lv.name, &volume.spec.device_class).await?;
        let active = active.ok_or_else(|| CsiError::NoLv(lv.name.clone()))?;
        let number = active.number.ok_or_else(|| MountError::NoDevice(active.path.clone()))?;
        match self.mounter.open_device(&active.path, number).await {
            Err(MountError::NoDevice(path)) => Err(CsiError::DeviceNotVisible(path)),
            opened => Ok(opened?),
        }
    }

    /// Checks that a path leads to this device now; [`MountError::WrongDevice`] if it does not.
    pub(super) async fn check_leads_to(&self, path: &Path, wanted: DeviceNumber) -> Result<(), CsiError> {
        let found = match self.mounter.inspect_path(path).await? {
            PathKind::BlockDevice(number) if number == wanted => return Ok(()),
            PathKind::BlockDevice(number) => Some(number),
            PathKind::Absent | PathKind::Directory | PathKind::Other => None,
        };
        Err(MountError::WrongDevice { path: path.to_owned(), found, wanted }.into())
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
}
