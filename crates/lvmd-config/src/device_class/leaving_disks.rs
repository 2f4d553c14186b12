//! The part of a volume group that is on disks to be emptied: a pool does not grow into it, and as much is reserved on
//! the other disks.

use lvm::{PhysicalVolume, VolumeGroup};

use crate::tags::EvacuationRequest;

/// The disks of a volume group that are to be emptied, together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeavingDisks {
    /// Bytes in their extents.
    pub(super) size: u64,
    /// Bytes of volumes on them, which need space on other disks.
    pub(super) used: u64,
}

impl LeavingDisks {
    /// Returns the disks of a group that are to be emptied.
    pub(super) fn of(group: &VolumeGroup) -> Self {
        Self::sum(group.pvs.iter().filter(|pv| Self::includes(pv)))
    }

    /// Returns those of which the volumes are being moved. Others wait until the group has enough free space.
    pub(super) fn in_motion(group: &VolumeGroup) -> Self {
        Self::sum(group.pvs.iter().filter(|pv| Self::includes(pv) && !pv.allocatable))
    }

    /// Returns whether a disk is to be emptied.
    pub(super) fn includes(pv: &PhysicalVolume) -> bool {
        EvacuationRequest::of(pv).is_some()
    }

    fn sum<'a>(disks: impl Iterator<Item = &'a PhysicalVolume>) -> Self {
        disks.fold(Self::default(), |Self { size, used }, pv| Self {
            size: size.saturating_add(pv.size),
            used: used.saturating_add(pv.size.saturating_sub(pv.free)),
        })
    }
}
