//! `NodeGetVolumeStats`: how full a published volume is. kubelet asks about once a minute for each.

use topolvm_proto::csi::VolumeUsage;
use topolvm_proto::csi::volume_usage::Unit;

use super::request::GetVolumeStats;
use super::{Agent, Error};
use crate::mount::{FilesystemUsage, Mounter, PathKind};

impl<M: Mounter> Agent<M> {
    /// Asks neither lvmd nor the API server, so that what is mounted can be measured while both are away.
    pub(super) async fn stats(&self, request: GetVolumeStats) -> Result<Vec<VolumeUsage>, Error> {
        let GetVolumeStats { id, path } = request;
        let not_published = || Error::NotPublished { id: id.clone(), path: path.clone() };
        if self.volumes.is_surely_unknown(&id).await {
            return Err(not_published());
        }
        match self.mounter.inspect(&path).await? {
            PathKind::Absent | PathKind::Other => Err(not_published()),
            PathKind::BlockDevice(_) => {
                let total = self.mounter.block_device(&path).await?.size_bytes;
                Ok(vec![VolumeUsage { total: to_wire(total), unit: Unit::Bytes.into(), ..VolumeUsage::default() }])
            }
            // A bare directory would give the numbers of the node's own disk
            PathKind::Directory if self.mounter.mounts_at(&path).await?.is_empty() => Err(not_published()),
            PathKind::Directory => Ok(usages(&self.mounter.usage(&path).await?)),
        }
    }
}

/// Filesystems that make inodes as they need them have none to report.
fn usages(usage: &FilesystemUsage) -> Vec<VolumeUsage> {
    let bytes = VolumeUsage {
        total: to_wire(usage.total_bytes),
        used: to_wire(usage.used_bytes),
        available: to_wire(usage.available_bytes),
        unit: Unit::Bytes.into(),
    };
    let inodes = VolumeUsage {
        total: to_wire(usage.total_inodes),
        used: to_wire(usage.used_inodes),
        available: to_wire(usage.free_inodes),
        unit: Unit::Inodes.into(),
    };
    [bytes, inodes].into_iter().filter(|usage| usage.total > 0).collect()
}

fn to_wire(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filesystem_without_fixed_inodes_reports_bytes_only() {
        let usage = FilesystemUsage {
            total_bytes: 100,
            used_bytes: 30,
            available_bytes: 60,
            total_inodes: 0,
            used_inodes: 0,
            free_inodes: 0,
        };
        let expected = VolumeUsage { total: 100, used: 30, available: 60, unit: Unit::Bytes.into() };
        assert_eq!(usages(&usage), [expected]);
    }
}
