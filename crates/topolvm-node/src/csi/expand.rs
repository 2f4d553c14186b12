//! `NodeExpandVolume`: lets a filesystem grow into a volume that the controller has grown.

use super::request::ExpandVolume;
use super::{Agent, Error};
use crate::Filesystem;
use crate::mount::{Mounter, PathKind};

impl<M: Mounter> Agent<M> {
    /// The real size of the volume in bytes.
    pub(super) async fn expand(&self, request: ExpandVolume) -> Result<u64, Error> {
        let ExpandVolume { id, path, required_bytes, is_block } = request;
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
        let device = self.device(&volume, &lv).await?;
        let mounts = self.mounter.mounts_at(&path).await?;
        let Some(mount) = mounts.last().filter(|mount| mount.device == device.number) else {
            return Err(Error::NotPublished { id, path });
        };
        let Ok(filesystem) = Filesystem::parse(&mount.filesystem) else {
            return Err(Error::CannotGrow { id, filesystem: mount.filesystem.clone() });
        };
        if mount.readonly {
            return Err(Error::GrowReadOnly(id));
        }
        self.mounter.grow(&lv.path, &path, filesystem).await?;
        Ok(lv.size_bytes)
    }
}
