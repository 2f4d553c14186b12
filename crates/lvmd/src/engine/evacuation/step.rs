//! One step of an evacuation: a piece of a volume is read and moved, or an empty disk taken out of its group.

use std::collections::BTreeSet;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use lvm::relocation::{arrived, begun_moves, next_piece};
use lvm::{Devices as _, Host, PhysicalVolume, UsedRange, VolumeGroup};
use tokio::time::{Instant, sleep};
use tracing::Instrument as _;

use super::request::{find_disk, refusal, targets};
use super::vacated::without_wiped;
use crate::engine::disk_volumes::owner;
use crate::engine::group::Group;
use crate::engine::preconditions::check_no_missing_pvs;
use crate::engine::state::Engine;
use crate::error::{Error, IncompleteMove};
use crate::tags::{EvacuationWish, VacatedExtents};

/// Most bytes of a piece: a volume that is moved cannot be changed meanwhile, and lvmd does not end.
const LARGEST_PIECE: u64 = 512 << 20;
/// Interval at which the kernel is asked whether a move goes well, a twentieth of that at which LVM looks for the end
/// of it: what has failed is forgotten with the end.
const HEALTH_INTERVAL: Duration = Duration::from_millis(50);
/// Time in which a piece may be moved by the rate that was asked for.
const PIECE_SECONDS: u64 = 2;

/// Most runs of pvmove for one piece.
const MOVE_ATTEMPTS: u32 = 10;
/// Time between two of them.
const MOVE_PAUSE: Duration = Duration::from_secs(1);

/// The next thing to be done with a disk.
#[derive(Debug)]
pub(super) enum Step {
    /// Nothing: nothing is on it, or nobody wants it to be emptied any more, or it has just left its group.
    Nothing,
    /// Wait until what is left on it is wiped.
    Wait,
    /// Move a piece.
    Move(Box<PlannedMove>),
}

/// A piece, with the devices from and to which it is moved.
#[derive(Debug)]
pub(super) struct PlannedMove {
    /// The volume, which may be a hidden one.
    pub(super) volume: String,
    /// The volume that is no hidden one, or the pool, of which that is a part.
    pub(super) owner: String,
    pub(super) bytes: u64,
    from: PhysicalVolume,
    /// First byte on the device of that; `None` of a piece that LVM has begun to move.
    first_byte: Option<u64>,
    /// First and last extent.
    extents: (u64, u64),
    to: Option<Destination>,
}

/// The place that a piece is moved to.
#[derive(Debug)]
struct Destination {
    pv: PhysicalVolume,
    /// The extents that the volume had before.
    ranges: Vec<UsedRange>,
    extent_size: u64,
}

impl PlannedMove {
    /// Returns what LVM has begun to move from a physical volume.
    pub(super) fn begun(range: &UsedRange, from: &PhysicalVolume, extent_size: u64) -> Self {
        Self {
            volume: range.volume.clone(),
            owner: owner(range).unwrap_or(&range.volume).to_owned(),
            bytes: range.length.saturating_mul(extent_size),
            from: from.clone(),
            first_byte: None,
            extents: last_of(range.start, range.length),
            to: None,
        }
    }

    /// Returns the device that it is moved from.
    pub(super) fn source(&self) -> &str {
        &self.from.path
    }

    /// Returns whether it is the same piece, wherever it goes.
    pub(super) fn is_same_piece(&self, other: &Self) -> bool {
        (&self.volume, &self.from.uuid, self.extents) == (&other.volume, &other.from.uuid, other.extents)
    }
}

impl<R: Host> Engine<R> {
    /// Returns what is to be done with a disk. Takes it out of its group if it is empty and is to leave. The caller
    /// holds the group's lock.
    pub(super) async fn plan_step(&self, group: &Group, uuid: &str) -> Result<Step, Error> {
        let known = self.current(group).await?;
        let Some(pv) = known.pv_of_uuid(uuid) else { return Ok(Step::Nothing) };
        let Some(wish) = EvacuationWish::of(pv) else {
            self.wipe_vacated(group, &known, pv, false).await?;
            return Ok(Step::Nothing);
        };
        if let Some(lost) = group.evacuation.stopped(uuid) {
            // It must not leave either when lvmd has been started again and knows nothing of this
            if wish.remove {
                self.store_wish(group, &known, pv, EvacuationWish { remove: false, ..wish }, false).await?;
            }
            return Err(Error::MovedIncompletely(lost));
        }
        check_no_missing_pvs(&known)?;
        let pv = find_disk(&known, &pv.uuid)?;
        if pv.allocatable {
            self.begin_moving(group, &known, pv, wish).await?;
            return Ok(Step::Nothing);
        }
        let has_vacated = VacatedExtents::are_on(pv);
        if pv.free == pv.size && !has_vacated {
            if wish.remove {
                self.take_out(group, &known, pv).await?;
            }
            return Ok(Step::Nothing);
        }
        let used = self.inner.lvm.used_ranges(&known.name).await?;
        let ranges = without_wiped(&known, used);
        let is_on_disk = |volume: &str| ranges.iter().any(|range| range.pv == uuid && range.volume == volume);
        group.evacuation.forget_unreadable(uuid, is_on_disk);
        let left_behind = group.evacuation.left_behind(uuid, Instant::now());
        let ranges = without(ranges, uuid, &left_behind);
        let most = largest_piece(wish, known.extent_size);
        let piece = next_piece(&ranges, uuid, &targets(&known, pv), most);
        let Some(piece) = piece.map_err(|obstacle| refusal(&known, pv, obstacle))? else {
            if let Some(why) = group.evacuation.unreadable(uuid) {
                return Err(Error::VolumesStay { disk: pv.path.clone(), why });
            }
            if has_vacated && wish.remove {
                self.wipe_vacated(group, &known, pv, true).await?;
                return Ok(Step::Nothing);
            }
            return Ok(Step::Wait);
        };
        if let Some(how) = self.wipe_of_group(&known).filter(|_| !has_vacated) {
            let leaving = ranges.iter().filter(|range| range.pv == uuid);
            let recorded = self.record_vacated(group, pv, how, leaving).await;
            self.refresh(group).await?;
            return recorded.map(|()| Step::Nothing);
        }
        let disk_start = ranges.iter().find(|range| range.pv == uuid).map_or(0, |range| range.disk_start);
        let first_byte = disk_start.saturating_add(piece.start.saturating_mul(known.extent_size));
        let target = piece.target.as_deref().and_then(|target| known.pv_of_uuid(target));
        let destination = target.map(|target| Destination {
            pv: target.clone(),
            ranges: ranges.iter().filter(|range| range.volume == piece.volume).cloned().collect(),
            extent_size: known.extent_size,
        });
        let range = ranges.iter().find(|range| range.volume == piece.volume);
        let owner = range.and_then(owner).unwrap_or(&piece.volume).to_owned();
        Ok(Step::Move(Box::new(PlannedMove {
            volume: piece.volume,
            owner,
            bytes: piece.length.saturating_mul(known.extent_size),
            from: pv.clone(),
            first_byte: target.map(|_| first_byte),
            extents: last_of(piece.start, piece.length),
            to: destination,
        })))
    }

    /// Reads a piece that is to be moved. LVM moves what cannot be read as if it could: the copy of a whole region has
    /// whatever was on the other disk before, and what could be read of it is gone with the rest.
    pub(super) async fn read_piece(&self, planned: &PlannedMove) -> Result<io::Result<()>, Error> {
        match planned.first_byte {
            Some(start) => self.read_disk(&planned.from, start, planned.bytes).await,
            None => Ok(Ok(())),
        }
    }

    async fn read_disk(&self, pv: &PhysicalVolume, start: u64, length: u64) -> Result<io::Result<()>, Error> {
        let (devices, pv) = (self.devices(), pv.clone());
        tokio::task::spawn_blocking(move || devices.read_through(&pv, start, length)).await.map_err(Error::Interrupted)
    }

    /// Moves a piece, to its end also when the shutdown begins. Other volumes are changed meanwhile.
    pub(super) async fn move_piece(&self, group: &Arc<Group>, planned: PlannedMove) -> Result<(), Error> {
        let (engine, group) = (self.clone(), Arc::clone(group));
        let moving = async move { engine.move_to_its_end(&group, &planned).await };
        self.inner.tasks.finish(moving.in_current_span()).await.map_err(Error::Interrupted)?
    }

    /// Moves a piece, and again while LVM's metadata says that the move has not ended: pvmove ends without an error if
    /// its volume is deactivated meanwhile, as a pool is with the last volume in it.
    async fn move_to_its_end(&self, group: &Group, planned: &PlannedMove) -> Result<(), Error> {
        let mut rest = MOVE_ATTEMPTS;
        loop {
            self.run_pvmove(group, planned).await?;
            let after = self.inner.lvm.used_ranges(&group.name).await?;
            let Some(begun) = begun_moves(&after).find(|begun| begun.pv == planned.from.uuid) else {
                return self.check_arrival(group, planned, &after).await;
            };
            rest -= 1;
            if rest == 0 {
                return Err(Error::MoveNotEnded { vg: group.name.clone(), volume: begun.volume.clone() });
            }
            tracing::info!(vg = %group.name, volume = planned.owner, "pvmove ended too early; it goes on");
            sleep(MOVE_PAUSE).await;
        }
    }

    /// Runs pvmove. It takes no notice of a disk that cannot be written and ends well: the kernel is asked meanwhile,
    /// and the move is aborted then. It forgets what has failed when all is copied, so what has arrived is read in the
    /// end.
    async fn run_pvmove(&self, group: &Group, planned: &PlannedMove) -> Result<(), Error> {
        let (lvm, vg) = (&self.inner.lvm, &group.name);
        let (from, to) = (&planned.from.path, planned.to.as_ref().map(|to| &*to.pv.path));
        let mut moving = pin!(lvm.move_extents(vg, from, planned.extents, to));
        let moved = tokio::select! {
            moved = &mut moving => moved,
            () = self.until_move_fails(group) => {
                let aborted = self.abort_move(group, from).await;
                let moved = moving.await;
                if aborted.is_ok() {
                    let (volume, from) = (format!("{vg}/{}", planned.volume), from.clone());
                    return Err(Error::MoveFailed { volume, from, to: to.unwrap_or("another disk").to_owned() });
                }
                // LVM may have come to the end before
                moved
            }
        };
        if moved.is_err() {
            self.recover_from_cut_moves(group).await;
        }
        Ok(moved?)
    }

    /// Reads what has arrived of a piece. What cannot be read is still where the piece was before: on a disk to which
    /// nothing is written while it is to be emptied.
    async fn check_arrival(&self, group: &Group, planned: &PlannedMove, after: &[UsedRange]) -> Result<(), Error> {
        let Some(Destination { pv, ranges, extent_size }) = &planned.to else { return Ok(()) };
        let disk_start = after.iter().find(|range| range.pv == pv.uuid).map_or(0, |range| range.disk_start);
        for (start, length) in arrived(ranges, after, &planned.volume, &pv.uuid) {
            let first_byte = disk_start.saturating_add(start.saturating_mul(*extent_size));
            if let Err(error) = self.read_disk(pv, first_byte, length.saturating_mul(*extent_size)).await? {
                let lost = IncompleteMove {
                    volume: format!("{}/{}", group.name, planned.volume),
                    from: planned.from.path.clone(),
                    extents: planned.extents,
                    to: pv.path.clone(),
                    why: error.to_string(),
                };
                group.evacuation.stop(&planned.from.uuid, lost.clone());
                return Err(Error::MovedIncompletely(lost));
            }
        }
        Ok(())
    }

    /// Waits until a disk fails under a move of extents of a group.
    async fn until_move_fails(&self, group: &Group) {
        let devices = self.devices();
        // A device-mapper that does not answer says nothing of the disks
        while !group.is_move_failing(&devices).await.unwrap_or(false) {
            sleep(HEALTH_INTERVAL).await;
        }
    }

    /// Takes an empty disk out of its group. It stays a physical volume, of no group: a blank disk would be added again
    /// by the next look at the disks.
    async fn take_out(&self, group: &Group, known: &VolumeGroup, pv: &PhysicalVolume) -> Result<(), Error> {
        if known.pvs.len() == 1 {
            let why = "it is the last disk of its group; remove the group with vgremove".to_owned();
            return Err(Error::DiskNotAllowed { disk: pv.path.clone(), why });
        }
        let reduced = self.inner.lvm.reduce_group(&known.name, &pv.path).await;
        self.refresh(group).await?;
        reduced?;
        tracing::info!(vg = %known.name, disk = pv.path, uuid = pv.uuid, "took an empty disk out of its group");
        Ok(())
    }
}

/// Takes the extents of volumes on a physical volume out of the books.
fn without(mut ranges: Vec<UsedRange>, pv: &str, volumes: &BTreeSet<String>) -> Vec<UsedRange> {
    ranges.retain(|range| range.pv != pv || !volumes.contains(&range.volume));
    ranges
}

/// Returns the first and the last of so many extents.
fn last_of(start: u64, length: u64) -> (u64, u64) {
    (start, start.saturating_add(length.saturating_sub(1)))
}

/// Returns the extents of the largest piece.
fn largest_piece(wish: EvacuationWish, extent_size: u64) -> u64 {
    let bytes = match wish.bytes_per_second {
        0 => LARGEST_PIECE,
        rate => rate.saturating_mul(PIECE_SECONDS).min(LARGEST_PIECE),
    };
    bytes.checked_div(extent_size).unwrap_or(0).max(1)
}

/// Returns the pause after a piece that keeps the rate in the mean.
pub(super) fn pause_after(bytes: u64, took: Duration, wish: EvacuationWish) -> Duration {
    let Some(millis) = bytes.saturating_mul(1000).checked_div(wish.bytes_per_second) else { return Duration::ZERO };
    Duration::from_millis(millis).saturating_sub(took)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXTENT: u64 = 4 << 20;

    fn at(bytes_per_second: u64) -> EvacuationWish {
        EvacuationWish { bytes_per_second, remove: false }
    }

    #[test]
    fn a_piece_takes_seconds_at_the_rate_and_is_an_extent_at_least() {
        assert_eq!(largest_piece(at(0), EXTENT), 128);
        assert_eq!(largest_piece(at(50 << 20), EXTENT), 25);
        assert_eq!(largest_piece(at(1), EXTENT), 1);
        assert_eq!(largest_piece(at(u64::MAX), EXTENT), 128);
    }

    #[test]
    fn the_rate_is_kept_by_pauses() {
        let second = Duration::from_secs(1);
        assert_eq!(pause_after(EXTENT, second, at(0)), Duration::ZERO);
        assert_eq!(pause_after(EXTENT, second, at(1 << 20)), 3 * second);
        assert_eq!(pause_after(EXTENT, 9 * second, at(1 << 20)), Duration::ZERO);
    }
}
