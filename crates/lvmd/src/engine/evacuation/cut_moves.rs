//! Goes on after a pvmove that was killed, or whose machine lost its power.

use std::sync::Arc;

use lvm::Host;
use lvm::relocation::begun_moves;
use topolvm_runtime::error_chain;

use super::request::is_ours;
use super::step::PlannedMove;
use crate::engine::disk_volumes::owner;
use crate::engine::group::Group;
use crate::engine::state::Engine;
use crate::error::Error;

impl<R: Host> Engine<R> {
    /// Finishes what has been begun to move in a group whose disks lvmd may change. Volumes work meanwhile, but cannot
    /// be changed.
    pub(super) async fn finish_begun_moves(&self, group: &Arc<Group>) {
        let _motion = group.evacuation.begin_motion().await;
        // LVM cannot go on with a move of which a device is suspended
        self.resume_cut_moves(group).await;
        if !group.cached().is_some_and(|known| is_ours(&known)) {
            return;
        }
        if let Err(error) = self.finish_all_begun_moves(group).await {
            let error = error_chain(&error);
            tracing::error!(vg = %group.name, error, "cannot finish what a pvmove has begun; see `pvs --segments`");
        }
        self.clear_up_cut_moves(group).await;
    }

    async fn finish_all_begun_moves(&self, group: &Arc<Group>) -> Result<(), Error> {
        let known = group.try_cached()?;
        let ranges = self.inner.lvm.used_ranges(&known.name).await?;
        for range in begun_moves(&ranges) {
            let Some(pv) = known.pv_of_uuid(&range.pv) else { continue };
            tracing::warn!(vg = %known.name, disk = pv.path, "finishing what a pvmove has begun");
            group.evacuation.set_moving(owner(range).unwrap_or(&range.volume), &pv.path);
            self.move_piece(group, PlannedMove::begun(range, pv, known.extent_size)).await?;
        }
        Ok(())
    }

    /// Lets volumes be used again after a pvmove that was killed.
    pub(super) async fn recover_from_cut_moves(&self, group: &Group) {
        self.resume_cut_moves(group).await;
        self.clear_up_cut_moves(group).await;
    }

    async fn clear_up_cut_moves(&self, group: &Group) {
        let vg = &group.name;
        match self.inner.lvm.clear_up_cut_moves(vg).await {
            Ok(volumes) if volumes.is_empty() => {}
            Ok(volumes) => tracing::warn!(%vg, ?volumes, "cleared up what a killed pvmove has left"),
            Err(error) => {
                let error = error_chain(&error);
                tracing::error!(%vg, error, "cannot clear up what a killed pvmove has left; see `lvs -a`");
            }
        }
    }
}
