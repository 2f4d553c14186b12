//! Begins and ends evacuations that a client requests. The client gets an answer after LVM's metadata contain the
//! change.

use lvm::relocation::{Obstacle, Target, check_space};
use lvm::{Host, PhysicalVolume, UsedRange, VolumeGroup};
use lvmd_config::disk_group_tag;
use lvmd_config::tags::{EvacuationRequest, VacatedExtents, evacuation_tags};

use super::obstacle::record_obstacle;
use super::vacated::without_wiped;
use crate::engine::preconditions::check_no_missing_pvs;
use crate::engine::state::{LockedGroup, Shared};
use crate::error::Error;

/// Begins to empty a physical volume, or changes how.
pub(in crate::engine) async fn begin_evacuation<R: Host>(
    group: &mut LockedGroup<R>,
    uuid: &str,
    request: EvacuationRequest,
) -> Result<(), Error> {
    let known = group.current().await?;
    let pv = find_disk(&known, uuid)?;
    let before = EvacuationRequest::of(pv);
    if before == Some(request) && !pv.allocatable {
        return Ok(());
    }
    check_no_missing_pvs(&known)?;
    // One that is being emptied may be emptied faster although there is no free space just now
    let has_begun = before.is_some() && !pv.allocatable;
    let obstacle = if has_begun { None } else { find_lack_of_space(group.shared(), &known, pv).await? };
    let waits = pv.allocatable && obstacle.is_some();
    if let Some(lack) = obstacle {
        record_obstacle(group.shared(), group, &pv.uuid, &pv.path, &lack);
    }
    store_request(group, &known, pv, request, waits).await?;
    tracing::info!(vg = %known.name, disk = pv.path, ?request, waits, "a disk is to be emptied");
    let known = group.try_cached()?;
    let is_stored = EvacuationRequest::of(find_disk(&known, uuid)?) == Some(request);
    if is_stored { Ok(()) } else { Err(Error::DiskVanished { vg: known.name.clone(), uuid: uuid.to_owned() }) }
}

/// Ends the evacuation of a physical volume: what was moved stays where it is.
pub(in crate::engine) async fn end_evacuation<R: Host>(group: &mut LockedGroup<R>, uuid: &str) -> Result<(), Error> {
    let known = group.current().await?;
    let pv = find_disk(&known, uuid)?;
    let remove = evacuation_tags(pv)?;
    if remove.is_empty() {
        return Ok(());
    }
    check_no_missing_pvs(&known)?;
    // What the moves have vacated is wiped first
    let is_free = !VacatedExtents::are_on(pv);
    let changed = group.lvm().change_pv(&known.name, &pv.path, is_free, &[], &remove).await;
    group.refresh().await?;
    changed?;
    tracing::info!(vg = %known.name, disk = pv.path, "a disk is not emptied any further");
    Ok(())
}

/// Begins to empty a physical volume that has waited for free space, if there is enough by now.
pub(super) async fn begin_moving<R: Host>(
    group: &mut LockedGroup<R>,
    known: &VolumeGroup,
    pv: &PhysicalVolume,
    request: EvacuationRequest,
) -> Result<(), Error> {
    match find_lack_of_space(group.shared(), known, pv).await? {
        Some(lack) => Err(lack),
        None => store_request(group, known, pv, request, false).await,
    }
}

/// Returns the error with the space that the other disks lack for all extents on this one; `None` if they have enough.
/// Fails if a volume on it cannot be moved.
async fn find_lack_of_space<R: Host>(
    shared: &Shared<R>,
    known: &VolumeGroup,
    pv: &PhysicalVolume,
) -> Result<Option<Error>, Error> {
    if known.pvs.len() == 1 {
        let why = "it is the only disk of its group; add another one to the group".to_owned();
        return Ok(Some(Error::DiskNotAllowed { disk: pv.path.clone(), why }));
    }
    if pv.free == pv.size {
        return Ok(None);
    }
    let ranges = without_wiped(known, shared.reader().used_ranges(&known.name).await?);
    match check_space_for(known, pv, &ranges) {
        Ok(()) => Ok(None),
        Err(lack @ (Error::NoSpaceForDisk { .. } | Error::NoPlaceFor { .. })) => Ok(Some(lack)),
        Err(error) => Err(error),
    }
}

/// Writes the request that a physical volume be emptied into LVM's metadata, in the place of another one. One that
/// `waits` for free space goes on to get volumes.
pub(super) async fn store_request<R: Host>(
    group: &mut LockedGroup<R>,
    known: &VolumeGroup,
    pv: &PhysicalVolume,
    request: EvacuationRequest,
    waits: bool,
) -> Result<(), Error> {
    let add = request.tag()?;
    let mut remove = evacuation_tags(pv)?;
    remove.retain(|tag| *tag != add);
    let changed = group.lvm().change_pv(&known.name, &pv.path, waits, &[add], &remove).await;
    group.refresh().await?;
    Ok(changed?)
}

/// Returns whether a group is one whose disks lvmd may change.
pub(super) fn is_ours(group: &VolumeGroup) -> bool {
    disk_group_tag(&group.name).is_ok_and(|tag| group.has_tag(&tag))
}

/// Returns a physical volume of a group whose disks lvmd may change.
pub(in crate::engine) fn find_disk<'a>(known: &'a VolumeGroup, uuid: &str) -> Result<&'a PhysicalVolume, Error> {
    if !is_ours(known) {
        return Err(Error::GroupNotOurs(known.name.clone()));
    }
    known.pv_of_uuid(uuid).ok_or_else(|| Error::DiskNotFound { vg: known.name.clone(), uuid: uuid.to_owned() })
}

/// Checks that all that lies on a physical volume, and on those that are being emptied, has space on the others.
fn check_space_for(known: &VolumeGroup, pv: &PhysicalVolume, ranges: &[UsedRange]) -> Result<(), Error> {
    let leaves = |other: &&PhysicalVolume| other.uuid == pv.uuid || EvacuationRequest::of(other).is_some();
    let from: Vec<_> = known.pvs.iter().filter(leaves).map(|pv| pv.uuid.as_str()).collect();
    let targets = targets(known, pv);
    check_space(ranges, &from, &targets).map_err(|obstacle| refusal(known, pv, obstacle))
}

/// Returns the physical volumes to which the volumes of this one can be moved.
pub(super) fn targets(known: &VolumeGroup, pv: &PhysicalVolume) -> Vec<Target> {
    let is_target =
        |other: &&PhysicalVolume| other.uuid != pv.uuid && other.allocatable && EvacuationRequest::of(other).is_none();
    let target = |pv: &PhysicalVolume| Target { uuid: pv.uuid.clone(), free: pv.free_areas.iter().sum() };
    known.pvs.iter().filter(is_target).map(target).collect()
}

/// Returns the error that names the obstacle to moving the volumes of a physical volume.
pub(super) fn refusal(known: &VolumeGroup, pv: &PhysicalVolume, obstacle: Obstacle) -> Error {
    let (vg, disk) = (known.name.clone(), pv.path.clone());
    let bytes = |extents: u64| extents.saturating_mul(known.extent_size);
    match obstacle {
        Obstacle::NoSpace { lacking } => Error::NoSpaceForDisk { vg, disk, lacking: bytes(lacking) },
        Obstacle::Apart { volume, lacking } => Error::NoPlaceFor { vg, disk, volume, lacking: bytes(lacking) },
        Obstacle::Kind { volume, segment_type } => {
            let why = format!(
                "{volume} is on it, which lvmd cannot move ({segment_type}, or a part of it that must lie on a disk of \
                 its own is on the same disk, or its allocation is contiguous); move it with pvmove, or remove it"
            );
            Error::DiskNotAllowed { disk, why }
        }
    }
}
