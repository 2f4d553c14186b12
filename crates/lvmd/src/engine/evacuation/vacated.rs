//! Extents that a move has left the contents of volumes in, in a group of which a class wipes: they are a removed
//! volume, and become one that is wiped before another volume gets them, or the disk leaves its group.
//!
//! A tag of the physical volume names them before anything is moved, and LVM takes no extents from the disk until they
//! belong to volumes that are wiped. So a crash at any moment gives none of them away.

use lvm::relocation::begun_moves;
use lvm::{Host, PhysicalVolume, UsedRange, VolumeGroup, Wipe};
use topolvm_runtime::error_chain;

use crate::engine::group::Group;
use crate::engine::preconditions::check_no_missing_pvs;
use crate::engine::state::Engine;
use crate::error::Error;
use crate::tags::{self, VacatedExtents};

impl<R: Host> Engine<R> {
    /// Returns how extents of a group are wiped that a move vacates; `None` if no class of the group wipes, and none of
    /// its volumes is of a class that did.
    pub(super) fn wipe_of_group(&self, known: &VolumeGroup) -> Option<Wipe> {
        let classes = self.classes();
        let of_classes = classes.iter().filter(|class| class.volume_group == known.name).filter_map(|class| class.wipe);
        of_classes.chain(known.volumes.iter().filter_map(tags::wipe_at_creation)).max()
    }

    /// Records that the extents which volumes have on a physical volume are wiped when these have left it, and keeps
    /// LVM from taking extents there.
    pub(super) async fn record_vacated<'a>(
        &self,
        group: &Group,
        pv: &PhysicalVolume,
        how: Wipe,
        ranges: impl Iterator<Item = &'a UsedRange>,
    ) -> Result<(), Error> {
        let new = VacatedExtents::new(how, ranges.map(|range| (range.start, range.length)));
        let add = VacatedExtents::of(pv).map_or_else(|| new.clone(), |before| before.with(&new)).tag()?;
        let mut remove = VacatedExtents::tags_of(pv)?;
        remove.retain(|tag| *tag != add);
        Ok(self.inner.lvm.change_pv(&group.name, &pv.path, false, &[add], &remove).await?)
    }

    /// Has the extents of a physical volume wiped that moves have vacated: makes a volume of them that carries the tag
    /// of removed volumes. Then the disk gets volumes again, unless it `leaves`. The caller holds the group's lock.
    pub(super) async fn wipe_vacated(
        &self,
        group: &Group,
        known: &VolumeGroup,
        pv: &PhysicalVolume,
        leaves: bool,
    ) -> Result<(), Error> {
        let (lvm, vg) = (&self.inner.lvm, &group.name);
        let Some(vacated) = VacatedExtents::of(pv) else { return Ok(()) };
        check_no_missing_pvs(known)?;
        let ranges = lvm.used_ranges(vg).await?;
        if let Some(begun) = begun_moves(&ranges).next() {
            return Err(Error::MoveNotEnded { vg: vg.clone(), volume: begun.volume.clone() });
        }
        let used: Vec<_> =
            ranges.iter().filter(|range| range.pv == pv.uuid).map(|range| (range.start, range.length)).collect();
        let extents = pv.size.checked_div(known.extent_size).unwrap_or(0);
        let left = vacated.without(&used, extents);
        if let Some((first, _)) = left.first() {
            let name = tags::claim_name(pv, *first)?;
            let tags = self.inner.instance.wiping_tags(vacated.how)?;
            self.store_outcome(group, lvm.claim_extents(vg, &name, &pv.path, &left, &tags).await)?;
            tracing::info!(%vg, disk = pv.path, %name, "what was moved from a disk is wiped there");
        }
        let changed = lvm.change_pv(vg, &pv.path, !leaves, &[], &VacatedExtents::tags_of(pv)?).await;
        self.refresh(group).await?;
        Ok(changed?)
    }

    /// Ends a move because a disk fails under it. What has been copied is wiped where it is: until then LVM takes no
    /// extents there.
    pub(super) async fn abort_move(&self, group: &Group, from: &str) -> Result<(), lvm::Error> {
        if let Err(error) = self.record_copies(group).await {
            let error = error_chain(&error);
            tracing::error!(
                vg = %group.name,
                disk = from,
                error,
                "cannot record where a move that is aborted has copied to; what is there is not wiped"
            );
        }
        self.inner.lvm.abort_move(&group.name, from).await
    }

    /// Waits for no lock: with the end of the move the kernel forgets that a disk has failed.
    async fn record_copies(&self, group: &Group) -> Result<(), Error> {
        let known = group.try_cached()?;
        let Some(how) = self.wipe_of_group(&known) else { return Ok(()) };
        let ranges = self.inner.lvm.used_ranges(&group.name).await?;
        let is_copy = |range: &&UsedRange| range.moved_from.as_ref().is_some_and(|from| *from != range.pv);
        for pv in &known.pvs {
            let copies = || ranges.iter().filter(is_copy).filter(|range| range.pv == pv.uuid);
            if copies().next().is_some() {
                self.record_vacated(group, pv, how, copies()).await?;
            }
        }
        Ok(())
    }
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
