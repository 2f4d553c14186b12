//! The free areas of one physical volume, in the order in which LVM looks at them.

use std::collections::BTreeSet;

use super::Cling;
use crate::layout::Policy;

/// A free area.
struct Area {
    id: usize,
    length: u64,
    /// What is left of it in this round.
    unreserved: u64,
}

/// An area that a round may take, and how much of it.
#[derive(Clone, Copy)]
pub(super) struct Candidate {
    pub disk: usize,
    area: usize,
    pub length: u64,
}

/// What a round looks for on each physical volume.
#[derive(Clone, Copy)]
pub(super) struct Round {
    pub policy: Policy,
    pub cling: Cling,
    /// Extents that are wanted for each image.
    pub share: u64,
    /// The least that is reserved.
    pub least: u64,
    /// Whether a smaller area will do.
    pub may_split: bool,
}

/// One physical volume.
pub(super) struct Disk {
    index: usize,
    /// The largest first, as long as nothing is reserved.
    areas: Vec<Area>,
    /// The images that have extents here.
    pub images: BTreeSet<usize>,
    /// How many images have metadata here.
    pub metadata: usize,
}

impl Disk {
    pub(super) fn new(index: usize, free: &[u64]) -> Self {
        let areas = free.iter().filter(|&&length| length > 0).enumerate();
        let mut areas: Vec<_> = areas.map(|(id, &length)| Area { id, length, unreserved: length }).collect();
        areas.sort_by_key(|area| std::cmp::Reverse(area.length));
        Self { index, areas, images: BTreeSet::new(), metadata: 0 }
    }

    /// Extents that are free.
    pub(super) fn free(&self) -> u64 {
        self.areas.iter().map(|area| area.length).sum()
    }

    /// How many pieces of so many extents there are, each in one area.
    pub(super) fn pieces(&self, length: u64) -> u64 {
        self.areas.iter().filter_map(|area| area.length.checked_div(length)).sum()
    }

    /// Forgets what the last round reserved and did not take. An area that is put back into its place may end this early, and
    /// then others stay reserved: LVM does so, and can run out of space for that reason.
    pub(super) fn start_round(&mut self) {
        let mut position = 0;
        while let Some(area) = self.areas.get_mut(position) {
            if area.unreserved != area.length {
                area.unreserved = area.length;
                position = self.put_back(position);
            }
            position += 1;
        }
    }

    /// The first area, whole.
    pub(super) fn first(&self) -> Option<Candidate> {
        self.areas.first().map(|area| Candidate { disk: self.index, area: area.id, length: area.length })
    }

    /// Walks through the areas, which change their order while LVM walks. Of all that fit, the last one counts, except with
    /// [`Policy::Anywhere`].
    pub(super) fn look(&mut self, round: &Round, data: usize, found: &mut Vec<Candidate>) {
        let clings = round.cling == Cling::Sorted;
        if clings && self.images.range(..data).next().is_none() {
            return;
        }
        let several = round.policy == Policy::Anywhere;
        let mut already = false;
        let mut position = 0;
        while let Some(area) = self.areas.get_mut(position) {
            if area.unreserved == 0 {
                position += 1;
                continue;
            }
            let too_small = area.unreserved < round.share;
            if !clings && too_small && (!round.may_split || (already && !several)) {
                return;
            }
            let length = round.share.max(round.least).min(area.unreserved);
            area.unreserved -= length;
            let (candidate, rest) = (Candidate { disk: self.index, area: area.id, length }, area.unreserved);
            match found.last_mut().filter(|_| already && !several) {
                Some(last) => *last = candidate,
                None => found.push(candidate),
            }
            already = true;
            if rest > 0 {
                position = self.put_back(position);
            }
            position += 1;
        }
    }

    /// Takes extents from the beginning of an area.
    pub(super) fn consume(&mut self, candidate: &Candidate, length: u64) {
        let Some(position) = self.areas.iter().position(|area| area.id == candidate.area) else { return };
        let Some(area) = self.areas.get_mut(position).filter(|area| area.length > length) else {
            self.areas.remove(position);
            return;
        };
        area.length -= length;
        area.unreserved = area.length;
        self.put_back(position);
    }

    /// Moves a changed area behind those that are not smaller, and gives its new place.
    fn put_back(&mut self, position: usize) -> usize {
        let area = self.areas.remove(position);
        let place = self.areas.iter().position(|other| area.unreserved > other.length).unwrap_or(self.areas.len());
        self.areas.insert(place, area);
        place
    }
}
