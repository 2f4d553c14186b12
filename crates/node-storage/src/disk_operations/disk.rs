//! The disk that a `DiskOperation` names: found once in lvmd's report, and then recorded.

use topolvm_api::{DiskOperation, DiskStatus, NodeStorageStatus, PhysicalVolumeStatus, VolumeGroupStatus};

/// A disk of the node.
#[derive(Clone, Copy, Debug)]
pub(super) enum Disk<'a> {
    /// A physical volume of a volume group.
    Member(&'a VolumeGroupStatus, &'a PhysicalVolumeStatus),
    /// A disk that lvmd counts as one of its disk group, and whose physical volume LVM has not shown yet.
    Joined(&'a DiskStatus),
    /// A disk that is in no volume group.
    Free(&'a DiskStatus),
}

impl<'a> Disk<'a> {
    /// Finds a disk by LVM's UUID, by its name in /dev/disk/by-id, or by the path of one that has no such name: any
    /// other path may be another disk's after the next boot.
    pub(super) fn find(name: &str, status: &'a NodeStorageStatus) -> Option<Self> {
        if let Some((group, pv)) = status.physical_volume(name) {
            return Some(Self::Member(group, pv));
        }
        let disk = status.disks.iter().find(|disk| disk.is_named(name))?;
        match status.physical_volumes().find(|(_, pv)| !pv.missing && pv.path == disk.path) {
            Some((group, pv)) => Some(Self::Member(group, pv)),
            None if disk.is_member() => Some(Self::Joined(disk)),
            None => Some(Self::Free(disk)),
        }
    }

    /// Returns the identity of the disk: the UUID, or else the name.
    fn identity(self) -> &'a str {
        match self {
            Self::Member(_, pv) => &pv.uuid,
            Self::Joined(disk) | Self::Free(disk) => disk.key(),
        }
    }
}

/// Finds an operation among those that has the same disk as this one.
pub(super) fn find_conflict<'a>(
    disk: Disk<'_>,
    others: &[&'a DiskOperation],
    status: &NodeStorageStatus,
) -> Option<&'a DiskOperation> {
    let has_it = |other: &DiskOperation| match other.disk_uuid() {
        Some(uuid) => uuid == disk.identity(),
        None => Disk::find(&other.spec.disk, status).is_some_and(|found| found.identity() == disk.identity()),
    };
    others.iter().copied().find(|other| has_it(other))
}

/// Returns the recorded disk of an operation for people.
pub(super) fn describe(operation: &DiskOperation) -> String {
    let status = operation.status.clone().unwrap_or_default();
    let path = if status.device_path.is_empty() { "a disk without a device" } else { &status.device_path };
    format!("{path} (UUID {}) of volume group {}", status.disk_uuid, status.volume_group)
}
