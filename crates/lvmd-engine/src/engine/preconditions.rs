//! Checks that must pass before lvmd changes a volume group: LVM would refuse the change, or data would be shown to
//! others.

use lvm::{FullName, Layout, LogicalVolume, VolumeGroup};
use lvmd_config::{DeviceClass, FreeSpace, PoolRefusal, ThinPool};

use crate::error::Error;

/// Refuses a volume group that lacks physical volumes: LVM changes nothing in it.
pub(super) fn check_no_missing_pvs(group: &VolumeGroup) -> Result<(), Error> {
    match group.missing_pvs {
        0 => Ok(()),
        missing => Err(Error::PhysicalVolumesMissing { vg: group.name.clone(), missing }),
    }
}

/// Refuses a thin pool that does not zero its blocks although its class wipes: new volumes would show the contents of
/// removed ones.
pub(super) fn check_pool_zeroes(class: &DeviceClass, group: &VolumeGroup) -> Result<(), Error> {
    match class.pool_without_zeroing(group) {
        Some(pool) => Err(Error::PoolDoesNotZero(FullName::new(&group.name, &pool.name))),
        None => Ok(()),
    }
}

/// Refuses what no space helps with: LVM, or lvmd, creates no volume of the class in the group, as far as its report
/// shows.
pub(super) fn check_creates_volumes(class: &DeviceClass, group: &VolumeGroup) -> Result<(), Error> {
    check_no_missing_pvs(group)?;
    if let Some(why) = group.refusal() {
        return Err(Error::ClassRefused { class: class.name.clone(), why });
    }
    check_pool_zeroes(class, group)?;
    match class.refusing_pool(group) {
        Some((pool, PoolRefusal::Broken(why))) => Err(Error::PoolBroken(FullName::new(&group.name, &pool.name), why)),
        Some((_, PoolRefusal::Full(_))) | None => Ok(()),
    }
}

/// Refuses a thin pool that is full or broken: LVM creates nothing in it.
pub(super) fn check_pool_accepts_volumes(class: &DeviceClass, group: &VolumeGroup) -> Result<(), Error> {
    let Some((pool, refusal)) = class.refusing_pool(group) else { return Ok(()) };
    let pool = FullName::new(&group.name, &pool.name);
    Err(match refusal {
        PoolRefusal::Full(why) => Error::PoolFull(pool, why),
        PoolRefusal::Broken(why) => Error::PoolBroken(pool, why),
    })
}

/// Returns the free bytes of a device class, after the spare; see [`DeviceClass::free_bytes`].
pub(super) fn free_bytes(class: &DeviceClass, group: &VolumeGroup) -> Result<u64, Error> {
    class.free_bytes(group).map_err(|pool| thin_pool_missing(pool, group))
}

/// Returns the space into which a volume can grow or be copied: that of the class whose volumes lie where it lies, if
/// there is one.
pub(super) fn space_next_to<'a>(
    volume: &LogicalVolume,
    layout: &Layout,
    class: Option<&DeviceClass>,
    group: &'a VolumeGroup,
) -> Result<FreeSpace<'a>, Error> {
    let Some(class) = class else { return Ok(FreeSpace::without_class(volume, group)) };
    check_pool_accepts_volumes(class, group)?;
    class.free_space(layout, group).map_err(|pool| thin_pool_missing(pool, group))
}

pub(super) fn thin_pool_missing(pool: &ThinPool, group: &VolumeGroup) -> Error {
    Error::ThinPoolMissing(FullName::new(&group.name, &pool.name))
}

/// Rounds a size in bytes up as LVM does: to whole extents, the same number on every stripe.
pub(super) fn round_up_to_extents(group: &VolumeGroup, bytes: u64, stripes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(group.extent_size.checked_mul(stripes)?)
}
