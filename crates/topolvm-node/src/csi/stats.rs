//! `NodeGetVolumeStats`: usage and condition of a published volume. kubelet calls it about once a minute for each.

use std::path::Path;

use linux_mount::{FilesystemUsage, MountError, Mounter, PathKind};
use topolvm_proto::csi::volume_usage::Unit;
use topolvm_proto::csi::{NodeGetVolumeStatsResponse, VolumeUsage};

use super::CsiError;
use super::conditions::Condition;
use super::health::{HealthReports, stopped_condition, unreadable_condition};
use super::request::GetVolumeStats;

/// Usage and condition of a published volume, read at its path.
struct Measurement {
    usage: Vec<VolumeUsage>,
    condition: Option<Condition>,
}

impl<M: Mounter> HealthReports<M> {
    /// Returns usage and condition of a volume. The usage needs neither lvmd nor the API server, so that it is
    /// measured while both are away.
    pub(super) async fn stats(&self, request: GetVolumeStats) -> Result<NodeGetVolumeStatsResponse, CsiError> {
        let GetVolumeStats { id, path, staging } = request;
        let not_published = || CsiError::NotPublished { id: id.clone(), path: path.clone() };
        if self.access.volumes.is_known_to_be_absent(&id) {
            return Err(not_published());
        }
        let (usage, condition) = match self.hung_paths.guard(&path, self.measure(&path)).await {
            Ok(Some(Measurement { usage, condition: Some(condition) })) => (usage, Some(condition)),
            Ok(Some(Measurement { usage, condition: None })) => {
                (usage, self.mounts_condition(None, staging.as_deref()).await)
            }
            Ok(None) => return Err(not_published()),
            Err(error) if self.is_error_of_volume(&path, &error).await => {
                (Vec::new(), Some(unreadable_condition(&error)))
            }
            Err(error) => return Err(error.into()),
        };
        let condition = self.volume_condition(&id, condition).await;
        Ok(NodeGetVolumeStatsResponse { usage, volume_condition: Some(condition) })
    }

    /// Measures a filesystem or device; `None` if nothing is published at the path. Each call of the mounter is a
    /// thread of its own, and the mount table is long.
    async fn measure(&self, path: &Path) -> Result<Option<Measurement>, MountError> {
        let mounter = &self.access.mounter;
        match mounter.inspect_path(path).await? {
            PathKind::Absent | PathKind::Other => Ok(None),
            PathKind::BlockDevice(_) => {
                let total = to_wire(mounter.block_device(path).await?.size_bytes);
                let usage = VolumeUsage { total, unit: Unit::Bytes.into(), ..VolumeUsage::default() };
                Ok(Some(Measurement { usage: vec![usage], condition: None }))
            }
            PathKind::Directory => {
                // A bare directory would give the numbers of the node's own disk
                let Some(mount) = mounter.mounts_at(path).await?.pop() else { return Ok(None) };
                let usage = usages(&mounter.filesystem_usage(path).await?);
                Ok(Some(Measurement { usage, condition: stopped_condition(&mount) }))
            }
        }
    }

    /// Returns whether an error comes from the volume at a path, and not from this machine.
    async fn is_error_of_volume(&self, path: &Path, error: &MountError) -> bool {
        let by_disk = matches!(error, MountError::Io { .. } | MountError::Hung { .. });
        by_disk && self.access.mounter.mounts_at(path).await.is_ok_and(|mounts| !mounts.is_empty())
    }
}

/// Converts usage to CSI's form: bytes, and inodes unless the filesystem makes them as it needs them.
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

/// Converts a number to the signed integer of the protocol.
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
