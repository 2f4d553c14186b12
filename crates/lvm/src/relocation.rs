//! Plans where the extents on a physical volume can go: pure functions from the extents that volumes have and the free
//! extents of other physical volumes to the next piece to move.
//!
//! The calculation of the free space and the move choose pieces one after the other in the same way, so that the move
//! follows the calculation.

mod movable;

use crate::UsedRange;
use movable::{is_movable, must_lie_apart};

/// A physical volume to which volumes can be moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// LVM's identity of it.
    pub uuid: String,
    /// Its free extents.
    pub free: u64,
}

/// Extents that are moved at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The volume that they belong to, which may be a hidden one.
    pub volume: String,
    /// The first extent on the physical volume that they are on.
    pub start: u64,
    /// Number of extents.
    pub length: u64,
    /// LVM's identity of the physical volume that they are moved to; `None` for what LVM has begun to move already.
    pub target: Option<String>,
}

/// The reason for which what lies on a physical volume cannot be moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// So many extents more would have to be free on other physical volumes.
    NoSpace {
        /// The extents that are lacking.
        lacking: u64,
    },
    /// No other physical volume has enough free space for this volume, except those with a part that must lie apart
    /// from it.
    Apart {
        /// The volume, which may be a hidden one.
        volume: String,
        /// Its extents that have no place.
        lacking: u64,
    },
    /// The volume is of a kind that is not known to be movable.
    Kind {
        /// The volume, which may be a hidden one.
        volume: String,
        /// LVM's name of the type of its segment.
        segment_type: String,
    },
}

/// Checks that all that lies on the physical volumes `from` can be moved to the targets.
pub fn check_space(ranges: &[UsedRange], from: &[&str], targets: &[Target]) -> Result<(), Obstacle> {
    let (mut ranges, mut targets) = (ranges.to_vec(), targets.to_vec());
    // What LVM has begun to move has its place already
    let waits = |range: &&UsedRange| from.contains(&range.pv.as_str()) && range.moved_from.as_ref() != Some(&range.pv);
    let used: u64 = ranges.iter().filter(waits).map(|range| range.length).sum();
    let free: u64 = targets.iter().map(|target| target.free).sum();
    if used > free {
        return Err(Obstacle::NoSpace { lacking: used - free });
    }
    for pv in from {
        while let Some(piece) = next_piece(&ranges, pv, &targets, u64::MAX)? {
            move_piece(&mut ranges, pv, &mut targets, &piece);
        }
    }
    Ok(())
}

/// Returns the next piece of at most so many extents to move from the physical volume `from`; `None` when nothing is on
/// it. What LVM has begun to move comes first, then what has the fewest places to go to.
pub fn next_piece(ranges: &[UsedRange], from: &str, targets: &[Target], most: u64) -> Result<Option<Piece>, Obstacle> {
    let on_disk = || ranges.iter().filter(|range| range.pv == from);
    if let Some(begun) = begun_moves(ranges).find(|range| range.pv == from) {
        let UsedRange { volume, start, length, .. } = begun.clone();
        return Ok(Some(Piece { volume, start, length, target: None }));
    }
    if let Some(range) = on_disk().find(|range| !is_movable(range, ranges)) {
        let (volume, segment_type) = (range.volume.clone(), range.segment_type.clone());
        return Err(Obstacle::Kind { volume, segment_type });
    }
    let places = |range: &UsedRange| allowed(range, ranges, targets).count();
    let Some(range) = on_disk().min_by_key(|range| (places(range), &range.volume, range.start)) else {
        return Ok(None);
    };
    let Some(target) = choose_target(range, ranges, targets) else {
        let lacking = on_disk().filter(|other| other.volume == range.volume).map(|other| other.length).sum();
        return Err(Obstacle::Apart { volume: range.volume.clone(), lacking });
    };
    Ok(Some(Piece {
        volume: range.volume.clone(),
        start: range.start,
        length: range.length.min(target.free).min(most.max(1)),
        target: Some(target.uuid.clone()),
    }))
}

/// Returns the ranges that LVM has begun to move, where they are moved from.
pub fn begun_moves(ranges: &[UsedRange]) -> impl Iterator<Item = &UsedRange> {
    ranges.iter().filter(|range| range.moved_from.as_ref() == Some(&range.pv))
}

/// Returns the extents, each range by first one and number, that a volume has on a physical volume and did not have
/// before.
pub fn arrived(before: &[UsedRange], after: &[UsedRange], volume: &str, pv: &str) -> Vec<(u64, u64)> {
    let of_volume = |ranges: &[UsedRange]| {
        let here = ranges.iter().filter(|range| range.volume == volume && range.pv == pv);
        let mut here: Vec<_> = here.map(|range| (range.start, range.start.saturating_add(range.length))).collect();
        here.sort_unstable();
        here
    };
    let (before, mut arrived) = (of_volume(before), Vec::new());
    for (mut start, end) in of_volume(after) {
        for &(had_start, had_end) in &before {
            let new_end = had_start.clamp(start, end);
            arrived.push((start, new_end - start));
            start = had_end.clamp(start, end);
        }
        arrived.push((start, end - start));
    }
    arrived.retain(|(_, length)| *length > 0);
    arrived
}

/// Returns the targets on which nothing lies that must lie apart from the range.
fn allowed<'a>(
    range: &'a UsedRange,
    ranges: &'a [UsedRange],
    targets: &'a [Target],
) -> impl Iterator<Item = &'a Target> {
    let is_apart =
        move |target: &&Target| !ranges.iter().any(|other| other.pv == target.uuid && must_lie_apart(range, other));
    targets.iter().filter(is_apart)
}

/// Chooses the target of a range: preferably one with enough free space for all extents of the volume on this physical
/// volume, and one that already contains a part of the volume. The fewer disks a volume lies on, the fewer failures of
/// disks lose it.
fn choose_target<'a>(range: &'a UsedRange, ranges: &'a [UsedRange], targets: &'a [Target]) -> Option<&'a Target> {
    let is_same = |other: &&UsedRange| other.volume == range.volume;
    let whole: u64 = ranges.iter().filter(is_same).filter(|other| other.pv == range.pv).map(|other| other.length).sum();
    let has_part = |target: &Target| ranges.iter().filter(is_same).any(|other| other.pv == target.uuid);
    allowed(range, ranges, targets)
        .filter(|target| target.free > 0)
        .max_by_key(|target| (target.free >= whole, has_part(target), target.free))
}

/// Moves a piece in the books.
fn move_piece(ranges: &mut Vec<UsedRange>, from: &str, targets: &mut [Target], piece: &Piece) {
    let is_moved = |range: &&mut UsedRange| range.pv == from && range.start == piece.start;
    let Some(range) = ranges.iter_mut().find(is_moved) else { return };
    let moved = UsedRange { pv: piece.target.clone().unwrap_or_default(), length: piece.length, ..range.clone() };
    range.start += piece.length;
    range.length -= piece.length;
    if range.length == 0 {
        ranges.retain(|range| range.length > 0);
    }
    if let Some(target) = targets.iter_mut().find(|target| Some(&target.uuid) == piece.target.as_ref()) {
        target.free -= piece.length;
        ranges.push(moved);
    }
}

#[cfg(test)]
mod tests;
