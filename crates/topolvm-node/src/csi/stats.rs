//! `NodeGetVolumeStats`: how full a published volume is, and whether it is well. kubelet asks about once a minute for each.

use std::path::Path;

use topolvm_proto::csi::volume_usage::Unit;
use topolvm_proto::csi::{NodeGetVolumeStatsResponse, VolumeUsage};

use super::health::unreadable;
use super::request::GetVolumeStats;
use super::{Agent, Error};
use crate::mount::{self, FilesystemUsage, Mounter, PathKind};

impl<M: Mounter> Agent<M> {
    /// The usage asks neither lvmd nor the API server, so that what is mounted can be measured while both are away.
    pub(super) async fn stats(&self, request: GetVolumeStats) -> Result<NodeGetVolumeStatsResponse, Error> {
        let GetVolumeStats { id, path, staging } = request;
        let not_published = || Error::NotPublished { id: id.clone(), path: path.clone() };
        if self.volumes.is_surely_unknown(&id) {
            return Err(not_published());
        }
        let (usage, finding) = match self.hanging.guard(&path, self.measure(&path)).await {
            Ok(Some(usage)) => (usage, self.mounts_finding(Some(&path), staging.as_deref()).await),
            Ok(None) => return Err(not_published()),
            Err(error) if self.is_broken(&path, &error).await => (Vec::new(), Some(unreadable(&error))),
            Err(error) => return Err(error.into()),
        };
        let condition = self.condition(&id, finding).await;
        Ok(NodeGetVolumeStatsResponse { usage, volume_condition: Some(condition) })
    }

    /// `None` where nothing is published.
    async fn measure(&self, path: &Path) -> Result<Option<Vec<VolumeUsage>>, mount::Error> {
        match self.mounter.inspect(path).await? {
            PathKind::Absent | PathKind::Other => Ok(None),
            PathKind::BlockDevice(_) => {
                let total = self.mounter.block_device(path).await?.size_bytes;
                let usage = VolumeUsage { total: to_wire(total), unit: Unit::Bytes.into(), ..VolumeUsage::default() };
                Ok(Some(vec![usage]))
            }
            // A bare directory would give the numbers of the node's own disk
            PathKind::Directory if self.mounter.mounts_at(path).await?.is_empty() => Ok(None),
            PathKind::Directory => Ok(Some(usages(&self.mounter.usage(path).await?))),
        }
    }

    /// Whether the volume is what gives the error, and not this machine.
    async fn is_broken(&self, path: &Path, error: &mount::Error) -> bool {
        let by_disk = matches!(error, mount::Error::Io { .. } | mount::Error::Hangs { .. });
        by_disk && self.mounter.mounts_at(path).await.is_ok_and(|mounts| !mounts.is_empty())
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
