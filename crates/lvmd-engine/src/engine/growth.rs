//! A volume to grow.

use std::sync::Arc;

use lvm::{LogicalVolume, LvName, VolumeGroup};
use lvmd_config::DeviceClass;

use super::preconditions::{check_no_missing_pvs, round_up_to_extents, space_next_to};
use crate::error::Error;

/// A volume to grow, where its device class has volumes.
#[derive(Debug)]
pub(super) struct Growth {
    pub(super) class: Arc<DeviceClass>,
    pub(super) name: LvName,
    /// Size in bytes.
    pub(super) bytes: u64,
}

/// Returns the size in bytes after rounding. Fails if LVM cannot make the volume that large.
pub(super) fn check_space(
    volume: &LogicalVolume,
    class: Option<&DeviceClass>,
    group: &VolumeGroup,
    bytes: u64,
) -> Result<u64, Error> {
    check_no_missing_pvs(group)?;
    // The layout that the volume has counts, not that of its class: it may have been created with other options.
    let layout = volume.layout();
    let space = space_next_to(volume, &layout, class, group)?;
    let current = volume.visible_size();
    // Extents of a volume are whole, so what is larger than it now is at least one extent larger.
    let size = round_up_to_extents(group, bytes, layout.step());
    size.filter(|size| space.fits(&layout, size.saturating_sub(current)))
        .ok_or(Error::NoSpace { free: space.bytes, requested: bytes.saturating_sub(current) })
}
