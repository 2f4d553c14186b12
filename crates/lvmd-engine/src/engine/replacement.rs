//! Replaces a missing physical volume: the mirrors that have lost an image with it are rebuilt on other disks, and the
//! physical volume is forgotten when nothing is on it any more.

use std::collections::BTreeSet;

use lvm::{Host, LvName, PhysicalVolume, UsedRange, VolumeGroup};

use super::evacuation::find_disk;
use super::state::{LockedGroup, MoveLock};
use crate::error::Error;

/// Rebuilds the mirrors that have lost a missing physical volume, and forgets it. LVM repairs nothing that is being
/// moved.
pub(super) async fn replace_in_group<R: Host>(
    group: &mut LockedGroup<R>,
    _move_lock: &MoveLock<R>,
    uuid: &str,
) -> Result<(), Error> {
    group.refresh().await?;
    let known = group.try_cached()?;
    let pv = find_disk(&known, uuid)?;
    let disk = group.last_path(uuid).unwrap_or_else(|| format!("with the UUID {uuid}"));
    let refused = |why: String| Error::DiskNotAllowed { disk: disk.clone(), why };
    if pv.device.is_some() {
        return Err(refused("it is there; only a missing disk is replaced".to_owned()));
    }
    let ranges = group.lvm().used_ranges(&known.name).await?;
    check_only_missing(&known, &ranges, uuid).map_err(&refused)?;
    for mirror in mirrors_on(&known, &ranges, uuid).map_err(|volumes| refused(lost(&volumes)))? {
        tracing::info!(vg = %known.name, name = %mirror, disk, "rebuilding a mirror that has lost a disk");
        let repaired = group.lvm().repair_mirror(&known.name, &mirror).await;
        match group.store_outcome(repaired) {
            // The extents that remain on the disk show the result
            Ok(()) | Err(lvm::Error::NoSpace(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    let left = group.lvm().used_ranges(&known.name).await?;
    if let Some(left) = left.iter().find(|range| range.pv == uuid) {
        let (vg, volume) = (known.name.clone(), left.volume.clone());
        return Err(Error::NoPlaceFor { vg, disk, volume, lacking: left.length.saturating_mul(known.extent_size) });
    }
    // The repair may have emptied another missing disk as well
    check_only_missing(&known, &left, uuid).map_err(&refused)?;
    let forgotten = group.lvm().forget_missing_disks(&known.name).await;
    group.refresh().await?;
    if group.try_cached()?.pv_of_uuid(uuid).is_some() {
        forgotten?;
        return Err(refused("LVM does not forget it; see `vgs` and `pvs`".to_owned()));
    }
    tracing::info!(vg = %known.name, disk, uuid, "forgot a missing disk on which nothing was left");
    Ok(())
}

/// Checks that no other missing physical volume is empty: LVM would forget it as well, and it may come back.
fn check_only_missing(known: &VolumeGroup, ranges: &[UsedRange], uuid: &str) -> Result<(), String> {
    let is_other = |pv: &&PhysicalVolume| pv.device.is_none() && pv.uuid != uuid;
    let is_empty = |pv: &&PhysicalVolume| !ranges.iter().any(|range| range.pv == pv.uuid);
    let others: Vec<_> = known
        .pvs
        .iter()
        .filter(is_other)
        .filter(is_empty)
        .map(|pv| format!("the disk with the UUID {}", pv.uuid))
        .collect();
    if others.is_empty() {
        return Ok(());
    }
    let (vg, others) = (&known.name, others.join(" and "));
    Err(format!(
        "{others} of volume group {vg} is missing, too, and LVM forgets all missing disks on which nothing is; bring \
         it back first, or give up all of them with `vgreduce --removemissing {vg}`"
    ))
}

/// Returns the mirrors of which an image is on this physical volume, or the names of what else is on it.
fn mirrors_on(known: &VolumeGroup, ranges: &[UsedRange], uuid: &str) -> Result<BTreeSet<LvName>, BTreeSet<String>> {
    let (mut mirrors, mut lost) = (BTreeSet::new(), BTreeSet::new());
    for range in ranges.iter().filter(|range| range.pv == uuid) {
        match mirror_of(known, range) {
            Some(mirror) => {
                mirrors.insert(mirror);
            }
            None => {
                lost.insert(range.volume.clone());
            }
        }
    }
    if lost.is_empty() { Ok(mirrors) } else { Err(lost) }
}

/// Returns the volume of type raid1 of which the range is an image or its metadata.
fn mirror_of(known: &VolumeGroup, range: &UsedRange) -> Option<LvName> {
    let volume = known.volume(range.raid_volume()?)?;
    let is_mirror = volume.segment.as_ref().is_some_and(|segment| &*segment.segment_type == "raid1");
    volume.name.parse().ok().filter(|_| is_mirror)
}

fn lost(volumes: &BTreeSet<String>) -> String {
    let names: Vec<_> = volumes.iter().map(String::as_str).collect();
    format!(
        "{} was on it without a mirror; bring the disk back, or remove what is lost (docs/node-maintenance.md)",
        names.join(", ")
    )
}
