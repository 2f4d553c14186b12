//! Extents that a move has left the contents of volumes in, in a group of which a class wipes: they are a removed
//! volume, and become one that is wiped before another volume gets them, or the disk leaves its group.
//!
//! A tag of the physical volume names them before anything is moved, and LVM takes no extents from the disk until they
//! belong to volumes that are wiped. So a crash at any moment gives none of them away.

use lvm::relocation::begun_moves;
use lvm::{Host, InvalidName, PhysicalVolume, Tag, UsedRange, VolumeGroup, Wipe};
use lvmd_config::DeviceClasses;
use lvmd_config::tags::{self, VacatedExtents};
use topolvm_runtime::error_chain;

use crate::engine::preconditions::check_no_missing_pvs;
use crate::engine::state::{LockedGroup, MoveLock};
use crate::error::Error;

/// The tags of a physical volume with which extents are recorded that volumes leave.
struct Record {
    add: Tag,
    remove: Vec<Tag>,
}

impl Record {
    /// Returns the tags for the extents that volumes have on a physical volume.
    fn of<'a>(
        pv: &PhysicalVolume,
        how: Wipe,
        ranges: impl Iterator<Item = &'a UsedRange>,
    ) -> Result<Self, InvalidName> {
        let new = VacatedExtents::new(how, ranges.map(|range| (range.start, range.length)));
        let add = VacatedExtents::of(pv).map_or_else(|| new.clone(), |before| before.with(&new)).tag()?;
        let mut remove = VacatedExtents::tags_of(pv)?;
        remove.retain(|tag| *tag != add);
        Ok(Self { add, remove })
    }
}

/// Returns how extents of a group are wiped that a move vacates; `None` if no class of the group wipes, and none of its
/// volumes is of a class that did.
pub(super) fn wipe_of_group(classes: &DeviceClasses, known: &VolumeGroup) -> Option<Wipe> {
    let of_classes = classes.iter().filter(|class| class.volume_group == known.name).filter_map(|class| class.wipe);
    of_classes.chain(known.volumes.iter().filter_map(tags::wipe_at_creation)).max()
}

/// Records that the extents which volumes have on a physical volume are wiped when these have left it, and keeps LVM
/// from taking extents there.
pub(super) async fn record_vacated<'a, R: Host>(
    group: &mut LockedGroup<R>,
    pv: &PhysicalVolume,
    how: Wipe,
    ranges: impl Iterator<Item = &'a UsedRange>,
) -> Result<(), Error> {
    let Record { add, remove } = Record::of(pv, how, ranges)?;
    Ok(group.lvm().change_pv(&group.name, &pv.path, false, &[add], &remove).await?)
}

/// Has the extents of a physical volume wiped that moves have vacated: makes a volume of them that carries the tag of
/// removed volumes. Then the disk gets volumes again, unless it `leaves`.
pub(super) async fn wipe_vacated<R: Host>(
    group: &mut LockedGroup<R>,
    known: &VolumeGroup,
    pv: &PhysicalVolume,
    leaves: bool,
) -> Result<(), Error> {
    let vg = &known.name;
    let Some(vacated) = VacatedExtents::of(pv) else { return Ok(()) };
    check_no_missing_pvs(known)?;
    let ranges = group.lvm().used_ranges(vg).await?;
    if let Some(begun) = begun_moves(&ranges).next() {
        return Err(Error::MoveNotEnded { vg: vg.clone(), volume: begun.volume.clone() });
    }
    let used: Vec<_> =
        ranges.iter().filter(|range| range.pv == pv.uuid).map(|range| (range.start, range.length)).collect();
    let extents = pv.size.checked_div(known.extent_size).unwrap_or(0);
    let left = vacated.without(&used, extents);
    if let Some((first, _)) = left.first() {
        let name = tags::claim_name(pv, *first)?;
        let tags = group.shared().instance.wiping_tags(vacated.how)?;
        let claimed = group.lvm().claim_extents(vg, &name, &pv.path, &left, &tags).await;
        group.store_outcome(claimed)?;
        tracing::info!(%vg, disk = pv.path, %name, "what was moved from a disk is wiped there");
    }
    let changed = group.lvm().change_pv(vg, &pv.path, !leaves, &[], &VacatedExtents::tags_of(pv)?).await;
    group.refresh().await?;
    Ok(changed?)
}

/// Ends a move because a disk fails under it. What has been copied is wiped where it is: until then LVM takes no
/// extents there.
pub(super) async fn abort_move<R: Host>(moves: &MoveLock<R>, from: &str) -> Result<(), lvm::Error> {
    if let Err(error) = record_copies(moves).await {
        let error = error_chain(&error);
        tracing::error!(
            vg = %moves.name,
            disk = from,
            error,
            "cannot record where a move that is aborted has copied to; what is there is not wiped"
        );
    }
    moves.abort_move(from).await
}

async fn record_copies<R: Host>(moves: &MoveLock<R>) -> Result<(), Error> {
    let known = moves.try_cached()?;
    let Some(how) = wipe_of_group(&moves.shared().classes(), &known) else { return Ok(()) };
    let ranges = moves.shared().reader().used_ranges(&known.name).await?;
    let is_copy = |range: &&UsedRange| range.moved_from.as_ref().is_some_and(|from| *from != range.pv);
    for pv in &known.pvs {
        let copies = || ranges.iter().filter(is_copy).filter(|range| range.pv == pv.uuid);
        if copies().next().is_some() {
            let Record { add, remove } = Record::of(pv, how, copies())?;
            moves.forbid_allocation(pv, &[add], &remove).await?;
        }
    }
    Ok(())
}

/// Returns the ranges of volumes that are moved: those that are being wiped are wiped where they are.
pub(super) fn without_wiped(known: &VolumeGroup, mut ranges: Vec<UsedRange>) -> Vec<UsedRange> {
    let is_wiped = |range: &UsedRange| {
        let name = range.parent.as_deref().unwrap_or(&range.volume);
        range.moved_from.is_none() && known.volume(name).is_some_and(tags::is_wiping)
    };
    ranges.retain(|range| !is_wiped(range));
    ranges
}
