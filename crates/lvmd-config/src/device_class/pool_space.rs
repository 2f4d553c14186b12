//! The free space that a thin pool can grow into, and the limits of its metadata.

use lvm::{LogicalVolume, VolumeGroup};

use super::DeviceClasses;
use super::leaving_disks::LeavingDisks;

/// Largest metadata size that every pool supports: lvmthin(7) names 15.81 GiB for pools whose metadata LVM crops.
pub(crate) const MAX_METADATA: u64 = 16_192 << 20;
/// Bytes of metadata that must be free before LVM creates a thin volume, or a quarter of the metadata if that is less
/// (LVM2, `thin_pool_metadata_min_threshold`).
const MIN_FREE_METADATA: u64 = 4 << 20;

/// The free space for a thin pool in its volume group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrowthSpace {
    /// Bytes of whole extents that are free on disks from which LVM takes any and that stay in the group, less what
    /// lies on disks that leave it, and what the thick class of the group keeps.
    pub(super) bytes: u64,
    /// Bytes of an extent.
    pub(super) extent: u64,
}

impl GrowthSpace {
    /// Returns the free space in a group.
    pub(super) fn of(group: &VolumeGroup, classes: &DeviceClasses) -> Self {
        let leaving = LeavingDisks::of(group);
        let stays = group.pvs.iter().filter(|pv| pv.allocatable && !LeavingDisks::includes(pv));
        let free = stays.map(|pv| pv.free).fold(0, u64::saturating_add).saturating_sub(leaving.used);
        let thick = classes.iter().filter(|class| class.volume_group == group.name && class.thin_pool.is_none());
        let kept = thick.map(|class| class.spare).max().unwrap_or(0);
        Self { bytes: round_down(free.saturating_sub(kept), group.extent_size), extent: group.extent_size }
    }
}

/// Returns the percentage of its metadata from which on LVM creates no volumes in a pool.
pub(super) fn max_metadata_percent(pool: &LogicalVolume) -> f64 {
    100.0 - pool.metadata_size.map_or(25.0, min_free_metadata_percent)
}

#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "a percentage needs no more precision")]
fn min_free_metadata_percent(size: u64) -> f64 {
    (MIN_FREE_METADATA as f64 * 100.0 / size.max(1) as f64).min(25.0)
}

/// Rounds down to whole extents.
pub(super) fn round_down(bytes: u64, extent: u64) -> u64 {
    bytes.checked_rem(extent).map_or(0, |rest| bytes.saturating_sub(rest))
}

/// Rounds up to whole extents.
pub(super) fn round_up(bytes: u64, extent: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(extent)
}
