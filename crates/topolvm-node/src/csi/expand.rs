//! `NodeExpandVolume`: grows the filesystem to the size of the LV, which the controller has grown.

use std::path::Path;

use linux_mount::{DeviceNumber, Filesystem, Mounter, PathKind};

use super::request::ExpandVolume;
use super::{Agent, CsiError};

impl<M: Mounter> Agent<M> {
    /// Grows the filesystem of a volume; returns the size of the LV in bytes. A raw block volume needs no growing
    /// here.
    pub(super) async fn expand(&self, request: ExpandVolume) -> Result<u64, CsiError> {
        let ExpandVolume { id, path, staging, required_bytes, is_block } = request;
        let (volume, lv) = self.access.find_volume(&id).await?;
        if lv.size_bytes < required_bytes {
            return Err(CsiError::TooSmall { id, size: lv.size_bytes, wanted: required_bytes });
        }
        let kind = self.access.mounter.inspect_path(&path).await?;
        match kind {
            PathKind::Absent | PathKind::Other => return Err(CsiError::NotPublished { id, path }),
            PathKind::BlockDevice(_) => return Ok(lv.size_bytes),
            PathKind::Directory if is_block => return Ok(lv.size_bytes),
            PathKind::Directory => {}
        }
        let opened = self.access.open_device(&volume, &lv).await?;
        let device = opened.device;
        let mounts = self.access.mounter.mounts_at(&path).await?;
        let Some(mount) = mounts.last().filter(|mount| mount.device == device.number) else {
            return Err(CsiError::NotPublished { id, path });
        };
        let Ok(filesystem) = Filesystem::parse(&mount.filesystem) else {
            return Err(CsiError::CannotGrow { id, filesystem: mount.filesystem.clone() });
        };
        let writable = match staging {
            _ if !mount.readonly => path,
            Some(staging) if self.is_writable(&staging, device.number).await? => staging,
            _ => return Err(CsiError::GrowReadOnly(id)),
        };
        self.mounts.frozen.grow(&opened.node, &writable, filesystem).await?;
        Ok(lv.size_bytes)
    }

    /// Returns whether the filesystem of a device is mounted read-write at a path. A pod may be allowed to read only
    /// what is staged for writing.
    async fn is_writable(&self, path: &Path, device: DeviceNumber) -> Result<bool, CsiError> {
        let mounts = self.access.mounter.mounts_at(path).await?;
        Ok(mounts.last().is_some_and(|mount| mount.device == device && !mount.readonly))
    }
}
