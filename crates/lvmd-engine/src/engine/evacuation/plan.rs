//! Plans one step of an evacuation: which piece of a volume is moved next, or that an empty disk leaves its group.

use std::collections::BTreeSet;
use std::time::Duration;

use lvm::relocation::next_piece;
use lvm::{Host, PhysicalVolume, UsedRange, VolumeGroup};
use lvmd_config::tags::{EvacuationRequest, VacatedExtents};
use tokio::time::Instant;

use super::piece::PlannedMove;
use super::request::{begin_moving, find_disk, refusal, store_request, targets};
use super::vacated::{record_vacated, wipe_of_group, wipe_vacated, without_wiped};
use crate::engine::preconditions::check_no_missing_pvs;
use crate::engine::state::LockedGroup;
use crate::error::Error;

/// Most bytes of a piece: a volume that is moved cannot be changed meanwhile, and lvmd does not end.
const LARGEST_PIECE: u64 = 512 << 20;
/// Time in which a piece may be moved at the requested rate.
const PIECE_SECONDS: u64 = 2;

/// The next thing to be done with a disk.
#[derive(Debug)]
pub(super) enum Step {
    /// Nothing: nothing is on it, or it is not to be emptied any more, or it has just left its group.
    Nothing,
    /// Wait until what is left on it is wiped.
    Wait,
    /// Move a piece.
    Move(Box<PlannedMove>),
}

/// Returns what is to be done with a disk. Takes it out of its group if it is empty and is to leave.
pub(super) async fn plan_step<R: Host>(group: &mut LockedGroup<R>, uuid: &str) -> Result<Step, Error> {
    let known = group.current().await?;
    let Some(pv) = known.pv_of_uuid(uuid) else { return Ok(Step::Nothing) };
    let Some(request) = EvacuationRequest::of(pv) else {
        wipe_vacated(group, &known, pv, false).await?;
        return Ok(Step::Nothing);
    };
    if let Some(lost) = group.evacuation.stopped(uuid) {
        // It must not leave either when lvmd has been started again and knows nothing of this
        if request.remove {
            store_request(group, &known, pv, EvacuationRequest { remove: false, ..request }, false).await?;
        }
        return Err(Error::MovedIncompletely(lost));
    }
    check_no_missing_pvs(&known)?;
    let pv = find_disk(&known, &pv.uuid)?;
    if pv.allocatable {
        begin_moving(group, &known, pv, request).await?;
        return Ok(Step::Nothing);
    }
    if pv.free == pv.size && !VacatedExtents::are_on(pv) {
        if request.remove {
            take_out(group, &known, pv).await?;
        }
        return Ok(Step::Nothing);
    }
    plan_piece(group, &known, pv, request).await
}

/// Returns the piece that is moved next from a disk. Records before which extents it vacates.
async fn plan_piece<R: Host>(
    group: &mut LockedGroup<R>,
    known: &VolumeGroup,
    pv: &PhysicalVolume,
    request: EvacuationRequest,
) -> Result<Step, Error> {
    let uuid = pv.uuid.as_str();
    let has_vacated = VacatedExtents::are_on(pv);
    let used = group.lvm().used_ranges(&known.name).await?;
    let ranges = without_wiped(known, used);
    let is_on_disk = |volume: &str| ranges.iter().any(|range| range.pv == uuid && range.volume == volume);
    group.evacuation.forget_unreadable(uuid, is_on_disk);
    let left_behind = group.evacuation.left_behind(uuid, Instant::now());
    let ranges = without(ranges, uuid, &left_behind);
    let most = largest_piece(request, known.extent_size);
    let piece = next_piece(&ranges, uuid, &targets(known, pv), most);
    let Some(piece) = piece.map_err(|obstacle| refusal(known, pv, obstacle))? else {
        if let Some(why) = group.evacuation.unreadable(uuid) {
            return Err(Error::VolumesStay { disk: pv.path.clone(), why });
        }
        if has_vacated && request.remove {
            wipe_vacated(group, known, pv, true).await?;
            return Ok(Step::Nothing);
        }
        return Ok(Step::Wait);
    };
    if let Some(how) = wipe_of_group(&group.shared().classes(), known).filter(|_| !has_vacated) {
        let vacating = ranges.iter().filter(|range| range.pv == uuid);
        let recorded = record_vacated(group, pv, how, vacating).await;
        group.refresh().await?;
        return recorded.map(|()| Step::Nothing);
    }
    Ok(Step::Move(Box::new(PlannedMove::new(piece, pv, &ranges, known))))
}

/// Takes an empty disk out of its group. It stays a physical volume, of no group: a blank disk would be added again by
/// the next scan of the disks.
async fn take_out<R: Host>(group: &mut LockedGroup<R>, known: &VolumeGroup, pv: &PhysicalVolume) -> Result<(), Error> {
    if known.pvs.len() == 1 {
        let why = "it is the last disk of its group; remove the group with vgremove".to_owned();
        return Err(Error::DiskNotAllowed { disk: pv.path.clone(), why });
    }
    let reduced = group.lvm().reduce_group(&known.name, &pv.path).await;
    group.refresh().await?;
    reduced?;
    tracing::info!(vg = %known.name, disk = pv.path, uuid = pv.uuid, "took an empty disk out of its group");
    Ok(())
}

/// Returns the ranges without those of these volumes on a physical volume.
fn without(mut ranges: Vec<UsedRange>, pv: &str, volumes: &BTreeSet<String>) -> Vec<UsedRange> {
    ranges.retain(|range| range.pv != pv || !volumes.contains(&range.volume));
    ranges
}

/// Returns the extents of the largest piece.
fn largest_piece(request: EvacuationRequest, extent_size: u64) -> u64 {
    let bytes = match request.bytes_per_second {
        0 => LARGEST_PIECE,
        rate => rate.saturating_mul(PIECE_SECONDS).min(LARGEST_PIECE),
    };
    bytes.checked_div(extent_size).unwrap_or(0).max(1)
}

/// Returns the pause after a piece that keeps the rate on average.
pub(super) fn pause_after(bytes: u64, took: Duration, request: EvacuationRequest) -> Duration {
    let Some(millis) = bytes.saturating_mul(1000).checked_div(request.bytes_per_second) else { return Duration::ZERO };
    Duration::from_millis(millis).saturating_sub(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXTENT: u64 = 4 << 20;

    fn at(bytes_per_second: u64) -> EvacuationRequest {
        EvacuationRequest { bytes_per_second, remove: false }
    }

    #[test]
    fn piece_takes_seconds_at_the_rate_and_is_an_extent_at_least() {
        assert_eq!(largest_piece(at(0), EXTENT), 128);
        assert_eq!(largest_piece(at(50 << 20), EXTENT), 25);
        assert_eq!(largest_piece(at(1), EXTENT), 1);
        assert_eq!(largest_piece(at(u64::MAX), EXTENT), 128);
    }

    #[test]
    fn pauses_keep_the_rate() {
        let second = Duration::from_secs(1);
        assert_eq!(pause_after(EXTENT, second, at(0)), Duration::ZERO);
        assert_eq!(pause_after(EXTENT, second, at(1 << 20)), 3 * second);
        assert_eq!(pause_after(EXTENT, 9 * second, at(1 << 20)), Duration::ZERO);
    }
}
