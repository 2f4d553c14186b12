//! `NodeExpandVolume`: lets a filesystem grow into a volume that the controller has grown.

use std::path::Path;

use super::request::ExpandVolume;
use super::{Agent, Error};
use crate::Filesystem;
use crate::mount::{DeviceNumber, Mounter, PathKind};

impl<M: Mounter> Agent<M> {
    /// The real size of the volume in bytes.
    pub(super) async fn expand(&self, request: ExpandVolume) -> Result<u64, Error> {
        let ExpandVolume { id, path, staging, required_bytes, is_block } = request;
        let (volume, lv) = self.lv(&id).await?;
        if lv.size_bytes < required_bytes {
            return Err(Error::TooSmall { id, size: lv.size_bytes, wanted: required_bytes });
        }
        let kind = self.mounter.inspect(&path).await?;
        match kind {
            PathKind::Absent | PathKind::Other => return Err(Error::NotPublished { id, path }),
            PathKind::BlockDevice(_) => return Ok(lv.size_bytes),
            PathKind::Directory if is_block => return Ok(lv.size_bytes),
            PathKind::Directory => {}
        }
        let held = self.device(&volume, &lv).await?;
        let device = held.device;
        let mounts = self.mounter.mounts_at(&path).await?;
        let Some(mount) = mounts.last().filter(|mount| mount.device == device.number) else {
            return Err(Error::NotPublished { id, path });
        };
        let Ok(filesystem) = Filesystem::parse(&mount.filesystem) else {
            return Err(Error::CannotGrow { id, filesystem: mount.filesystem.clone() });
        };
        let writable = match staging {
            _ if !mount.readonly => path,
            Some(staging) if self.is_writable(&staging, device.number).await? => staging,
            _ => return Err(Error::GrowReadOnly(id)),
        };
        self.mounter.grow(&held.node, &writable, filesystem).await?;
        Ok(lv.size_bytes)
    }

    /// Whether the filesystem of a device can be written to through this path. A pod may be allowed to read only what is
    /// staged for writing.
    async fn is_writable(&self, path: &Path, device: DeviceNumber) -> Result<bool, Error> {
        let mounts = self.mounter.mounts_at(path).await?;
        Ok(mounts.last().is_some_and(|mount| mount.device == device && !mount.readonly))
    }
}
