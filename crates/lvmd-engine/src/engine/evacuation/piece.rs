//! A piece of a volume that is moved from a disk that is being emptied.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use lvm::relocation::{Piece, arrived, begun_moves};
use lvm::{Devices as _, Host, PhysicalVolume, UsedRange, VolumeGroup};
use tokio::time::sleep;
use tracing::Instrument as _;

use super::vacated::abort_move;
use crate::engine::disk_volumes::owner;
use crate::engine::state::{MoveLock, Shared};
use crate::error::{Error, IncompleteMove};

/// Interval at which the kernel is asked whether a move goes well, a twentieth of that at which LVM polls for the end
/// of it: what has failed is forgotten with the end.
const HEALTH_INTERVAL: Duration = Duration::from_millis(50);
/// Most runs of pvmove for one piece.
const MOVE_ATTEMPTS: u32 = 10;
/// Time between two of them.
const MOVE_PAUSE: Duration = Duration::from_secs(1);

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
    /// Returns the move of a piece that was chosen from the ranges of a group.
    pub(super) fn new(piece: Piece, from: &PhysicalVolume, ranges: &[UsedRange], known: &VolumeGroup) -> Self {
        let disk_start = ranges.iter().find(|range| range.pv == from.uuid).map_or(0, |range| range.disk_start);
        let first_byte = disk_start.saturating_add(piece.start.saturating_mul(known.extent_size));
        let target = piece.target.as_deref().and_then(|target| known.pv_of_uuid(target));
        let destination = target.map(|target| Destination {
            pv: target.clone(),
            ranges: ranges.iter().filter(|range| range.volume == piece.volume).cloned().collect(),
            extent_size: known.extent_size,
        });
        let range = ranges.iter().find(|range| range.volume == piece.volume);
        let owner = range.and_then(owner).unwrap_or(&piece.volume).to_owned();
        Self {
            volume: piece.volume,
            owner,
            bytes: piece.length.saturating_mul(known.extent_size),
            from: from.clone(),
            first_byte: target.map(|_| first_byte),
            extents: last_of(piece.start, piece.length),
            to: destination,
        }
    }

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

/// Reads a piece that is to be moved. LVM moves what cannot be read as if it could: the copy of a whole region has
/// whatever was on the other disk before, and what could be read of it is gone with the rest.
pub(super) async fn read_piece<R: Host>(shared: &Shared<R>, planned: &PlannedMove) -> Result<io::Result<()>, Error> {
    match planned.first_byte {
        Some(start) => read_disk(shared, &planned.from, start, planned.bytes).await,
        None => Ok(Ok(())),
    }
}

async fn read_disk<R: Host>(
    shared: &Shared<R>,
    pv: &PhysicalVolume,
    start: u64,
    length: u64,
) -> Result<io::Result<()>, Error> {
    let (devices, pv) = (shared.devices(), pv.clone());
    tokio::task::spawn_blocking(move || devices.read_through(&pv, start, length)).await.map_err(Error::Interrupted)
}

/// Moves a piece, to its end also when the shutdown begins. Other volumes are changed meanwhile.
pub(super) async fn move_piece<R: Host>(moves: &Arc<MoveLock<R>>, planned: PlannedMove) -> Result<(), Error> {
    let held = Arc::clone(moves);
    let moving = async move { move_to_its_end(&held, &planned).await };
    moves.shared().tasks.finish(moving.in_current_span()).await.map_err(Error::Interrupted)?
}

/// Moves a piece, and again while LVM's metadata show an unfinished move: pvmove exits without an error if its volume
/// is deactivated meanwhile, as a pool is with the last volume in it.
async fn move_to_its_end<R: Host>(moves: &MoveLock<R>, planned: &PlannedMove) -> Result<(), Error> {
    let mut attempts_left = MOVE_ATTEMPTS;
    loop {
        run_pvmove(moves, planned).await?;
        let after = moves.shared().reader().used_ranges(&moves.name).await?;
        let Some(begun) = begun_moves(&after).find(|begun| begun.pv == planned.from.uuid) else {
            return check_arrival(moves, planned, &after).await;
        };
        attempts_left -= 1;
        if attempts_left == 0 {
            return Err(Error::MoveNotEnded { vg: moves.name.clone(), volume: begun.volume.clone() });
        }
        tracing::info!(vg = %moves.name, volume = planned.owner, "pvmove ended too early; it goes on");
        sleep(MOVE_PAUSE).await;
    }
}

/// Runs pvmove. It ignores a disk that cannot be written and ends well: the kernel is asked meanwhile, and the move is
/// aborted then. The kernel forgets what has failed when all is copied, so what has arrived is read in the end.
async fn run_pvmove<R: Host>(moves: &MoveLock<R>, planned: &PlannedMove) -> Result<(), Error> {
    let vg = &moves.name;
    let (from, to) = (&planned.from.path, planned.to.as_ref().map(|to| &*to.pv.path));
    let mut moving = pin!(moves.move_extents(from, planned.extents, to));
    let moved = tokio::select! {
        moved = &mut moving => moved,
        () = until_move_fails(moves) => {
            let aborted = abort_move(moves, from).await;
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
        moves.resume_interrupted_moves().await;
        moves.clear_up_interrupted_moves().await;
    }
    Ok(moved?)
}

/// Reads what has arrived of a piece. What cannot be read is still where the piece was before: on a disk to which
/// nothing is written while it is to be emptied.
async fn check_arrival<R: Host>(moves: &MoveLock<R>, planned: &PlannedMove, after: &[UsedRange]) -> Result<(), Error> {
    let Some(Destination { pv, ranges, extent_size }) = &planned.to else { return Ok(()) };
    let disk_start = after.iter().find(|range| range.pv == pv.uuid).map_or(0, |range| range.disk_start);
    for (start, length) in arrived(ranges, after, &planned.volume, &pv.uuid) {
        let first_byte = disk_start.saturating_add(start.saturating_mul(*extent_size));
        let length = length.saturating_mul(*extent_size);
        if let Err(error) = read_disk(moves.shared(), pv, first_byte, length).await? {
            let lost = IncompleteMove {
                volume: format!("{}/{}", moves.name, planned.volume),
                from: planned.from.path.clone(),
                extents: planned.extents,
                to: pv.path.clone(),
                why: error.to_string(),
            };
            moves.evacuation.stop(&planned.from.uuid, lost.clone());
            return Err(Error::MovedIncompletely(lost));
        }
    }
    Ok(())
}

/// Waits until a disk fails under a move of extents of a group.
async fn until_move_fails<R: Host>(moves: &MoveLock<R>) {
    let devices = moves.shared().devices();
    // A device-mapper that does not answer reports nothing about the disks
    while !moves.is_move_failing(&devices).await.unwrap_or(false) {
        sleep(HEALTH_INTERVAL).await;
    }
}

/// Returns the first and the last of so many extents.
fn last_of(start: u64, length: u64) -> (u64, u64) {
    (start, start.saturating_add(length.saturating_sub(1)))
}
