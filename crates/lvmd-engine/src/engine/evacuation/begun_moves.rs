//! Finishes moves that a killed pvmove, or one whose machine lost its power, has begun.

use std::sync::Arc;

use lvm::Host;
use lvm::relocation::begun_moves;
use topolvm_runtime::error_chain;

use super::piece::{PlannedMove, move_piece};
use super::request::is_ours;
use crate::engine::disk_volumes::owner;
use crate::engine::state::{GroupHandle, MoveLock};
use crate::error::Error;

/// Finishes what has been begun to move in a group whose disks lvmd may change. Volumes work meanwhile, but cannot be
/// changed.
pub(super) async fn finish_begun_moves<R: Host>(group: &GroupHandle<R>) {
    let moves = Arc::new(group.lock_moves().await);
    // LVM cannot go on with a move of which a device is suspended
    moves.resume_interrupted_moves().await;
    if !moves.cached().is_some_and(|known| is_ours(&known)) {
        return;
    }
    if let Err(error) = finish_all(&moves).await {
        let error = error_chain(&error);
        tracing::error!(vg = %moves.name, error, "cannot finish what a pvmove has begun; see `pvs --segments`");
    }
    moves.clear_up_interrupted_moves().await;
}

async fn finish_all<R: Host>(moves: &Arc<MoveLock<R>>) -> Result<(), Error> {
    let known = moves.try_cached()?;
    let ranges = moves.shared().reader().used_ranges(&known.name).await?;
    for range in begun_moves(&ranges) {
        let Some(pv) = known.pv_of_uuid(&range.pv) else { continue };
        tracing::warn!(vg = %known.name, disk = pv.path, "finishing what a pvmove has begun");
        moves.set_moving(owner(range).unwrap_or(&range.volume), &pv.path);
        move_piece(moves, PlannedMove::begun(range, pv, known.extent_size)).await?;
    }
    Ok(())
}
