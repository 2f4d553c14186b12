//! Computes the free bytes of a device class, thick or thin. Creation, growth, `GetFreeBytes` and `Watch` all use it.

use lvm::{Layout, LogicalVolume, VolumeGroup};

use super::leaving_disks::LeavingDisks;
use super::{DeviceClass, ThinPool};

/// The free space of a device class.
#[derive(Debug)]
pub struct FreeSpace<'a> {
    /// Bytes of the largest volume that can be created, after the spare.
    pub bytes: u64,
    /// The group where a thick volume can lie; `None` in a thin pool.
    group: Option<&'a VolumeGroup>,
}

impl<'a> FreeSpace<'a> {
    /// Returns the space into which a volume can grow if no class uses its group or pool any more: the free space of
    /// the group, or the physically free space of the thin pool. Without a class no overprovision ratio applies to the
    /// pool.
    pub fn without_class(volume: &LogicalVolume, group: &'a VolumeGroup) -> Self {
        let bytes = match &volume.pool {
            _ if group.missing_pvs > 0 => 0,
            None => group.largest_volume(&volume.layout(), 0),
            Some(pool) => group.volume(pool).map_or(0, unwritten_bytes),
        };
        Self { bytes, group: volume.pool.is_none().then_some(group) }
    }

    /// Returns whether a volume of this many bytes can be created. LVM's allocator is greedy: now and then it cannot
    /// create a size although it can create a larger one.
    pub fn fits(&self, layout: &Layout, bytes: u64) -> bool {
        bytes <= self.bytes && self.group.is_none_or(|group| group.has_free_space(layout, bytes))
    }
}

impl DeviceClass {
    /// Returns the free bytes of the class, after the spare: the size of the largest volume that fits into the volume
    /// group, or the size of the thin pool times its overprovision ratio less the sizes of all volumes in it, snapshots
    /// in full. 0 while physical volumes of the group are missing or LVM creates no volumes in the pool. The error is a
    /// thin pool that the group does not have.
    pub fn free_bytes(&self, group: &VolumeGroup) -> Result<u64, &ThinPool> {
        Ok(self.free_space(&self.layout, group)?.bytes)
    }

    /// Returns the same for volumes of any layout.
    pub fn free_space<'a>(&self, layout: &Layout, group: &'a VolumeGroup) -> Result<FreeSpace<'a>, &ThinPool> {
        let bytes = match &self.thin_pool {
            // What is being moved from disks that leave the group has the first right to free space
            None => group.largest_volume(layout, self.spare.saturating_add(LeavingDisks::in_motion(group).used)),
            Some(pool) => self.free_bytes_of_pool(pool, group)?,
        };
        // LVM creates nothing in a group that lacks physical volumes.
        let bytes = if group.missing_pvs > 0 { 0 } else { bytes };
        Ok(FreeSpace { bytes, group: self.thin_pool.is_none().then_some(group) })
    }

    fn free_bytes_of_pool<'p>(&self, pool: &'p ThinPool, group: &VolumeGroup) -> Result<u64, &'p ThinPool> {
        let found = pool.find(group).ok_or(pool)?;
        // Space that LVM would not allocate is not free, whatever the overprovision ratio allows.
        if pool.refusal(found).is_some() {
            return Ok(0);
        }
        let provisioned = group.volumes.iter().filter(|volume| self.owns(volume)).map(|volume| volume.size);
        let provisioned = provisioned.fold(0, u64::saturating_add);
        Ok(pool.overprovision.apply(found.size).saturating_sub(provisioned).saturating_sub(self.spare))
    }

    /// Returns the bytes of a thick class's spare that are not free in the group, because others took them. 0 while
    /// physical volumes are missing.
    pub fn used_spare(&self, group: &VolumeGroup) -> u64 {
        let is_kept = self.thin_pool.is_none() && group.missing_pvs == 0;
        if is_kept { self.spare.saturating_sub(group.allocatable_bytes()) } else { 0 }
    }

    /// Returns the bytes that are free where LVM may make volumes, less the spare of a thick class, whatever can be
    /// created of them. 0 while physical volumes are missing.
    pub fn group_free_bytes(&self, group: &VolumeGroup) -> u64 {
        match &self.thin_pool {
            Some(_) => group.allocatable_bytes(),
            None => group.allocatable_bytes().saturating_sub(self.spare),
        }
    }
}

/// Returns the bytes of a thin pool that nothing was written to.
#[expect(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "LVM reports the fill in percent only"
)]
fn unwritten_bytes(pool: &LogicalVolume) -> u64 {
    let used = pool.data_percent.unwrap_or(100.0).clamp(0.0, 100.0);
    (pool.size as f64 * (100.0 - used) / 100.0) as u64
}
