//! The LVM tag of physical volumes on which a move leaves the contents of volumes: which extents are wiped before
//! another volume gets them, and how.
//!
//! The tag is in LVM's metadata before anything is moved: a crash loses none of these extents.

use lvm::{InvalidName, PhysicalVolume, Tag, Wipe};

/// Begins the tag; the method and the extents follow, the first and the last of each range, separated by colons.
const VACATED: &str = "topolvm.io/vacated=";
/// Most ranges that a tag has space for: LVM takes 1024 characters, and counts extents with 32 bits.
const MOST_RANGES: usize = 40;

/// Ranges of extents of a physical volume. Those that no volume has are wiped before another volume gets them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VacatedExtents {
    /// The way in which they are wiped.
    pub how: Wipe,
    /// First extent, and the first one behind, in ascending order without overlap.
    ranges: Vec<(u64, u64)>,
}

impl VacatedExtents {
    /// Returns these ranges, each by its first extent and its length. Of very many ranges those with the smallest gaps
    /// become one.
    pub fn new(how: Wipe, ranges: impl Iterator<Item = (u64, u64)>) -> Self {
        let mut ranges: Vec<_> = ranges.map(|(start, length)| (start, start.saturating_add(length))).collect();
        ranges.sort_unstable();
        let mut joined = Self { how, ranges: Vec::new() };
        for range in ranges {
            joined.push(range);
        }
        while joined.ranges.len() > MOST_RANGES {
            joined.join_nearest();
        }
        joined
    }

    /// Returns the extents that the tags of a physical volume name; all of the disk if one of them cannot be read.
    pub fn of(pv: &PhysicalVolume) -> Option<Self> {
        let values = pv.tags.iter().filter_map(|tag| tag.strip_prefix(VACATED));
        let named = |value| Self::parse(value).unwrap_or_else(|| Self { how: Wipe::Zero, ranges: vec![(0, u64::MAX)] });
        values.map(named).reduce(|all, one| all.with(&one))
    }

    /// Returns whether a physical volume has such a tag.
    pub fn are_on(pv: &PhysicalVolume) -> bool {
        pv.tags.iter().any(|tag| tag.starts_with(VACATED))
    }

    /// Returns the tags of a physical volume that name such extents.
    pub fn tags_of(pv: &PhysicalVolume) -> Result<Vec<Tag>, InvalidName> {
        pv.tags.iter().filter(|tag| tag.starts_with(VACATED)).map(|tag| tag.parse()).collect()
    }

    /// Returns the tag that names these extents.
    pub fn tag(&self) -> Result<Tag, InvalidName> {
        let ranges: Vec<_> =
            self.ranges.iter().map(|(start, end)| format!(":{start}-{}", end.saturating_sub(1))).collect();
        format!("{VACATED}{}{}", self.how, ranges.concat()).parse()
    }

    /// Returns these extents and those of others, which are wiped in the stricter way.
    #[must_use]
    pub fn with(&self, other: &Self) -> Self {
        let both = self.ranges.iter().chain(&other.ranges).map(|(start, end)| (*start, end.saturating_sub(*start)));
        Self::new(self.how.max(other.how), both)
    }

    /// Returns the first and the last extent of each range that none of the `used` ones, each by first extent and
    /// length, has. The physical volume has so many extents.
    pub fn without(&self, used: &[(u64, u64)], extents: u64) -> Vec<(u64, u64)> {
        let mut used = used.to_vec();
        used.sort_unstable();
        let mut left = Vec::new();
        for &(mut start, end) in &self.ranges {
            let end = end.min(extents);
            for &(used_start, length) in &used {
                if start < used_start.min(end) {
                    left.push((start, used_start.min(end) - 1));
                }
                start = start.max(used_start.saturating_add(length));
            }
            if start < end {
                left.push((start, end - 1));
            }
        }
        left
    }

    fn parse(value: &str) -> Option<Self> {
        let mut fields = value.split(':');
        let how = Wipe::parse(fields.next()?)?;
        let range = |field: &str| {
            let (first, last) = field.split_once('-')?;
            let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
            Some((first, last.checked_sub(first)?.checked_add(1)?))
        };
        let ranges: Vec<_> = fields.map(range).collect::<Option<_>>()?;
        Some(Self::new(how, ranges.into_iter()))
    }

    /// Adds a range that does not begin before the last one.
    fn push(&mut self, (start, end): (u64, u64)) {
        match self.ranges.last_mut() {
            Some((_, last_end)) if start <= *last_end => *last_end = end.max(*last_end),
            _ => self.ranges.push((start, end)),
        }
    }

    fn join_nearest(&mut self) {
        let gaps = self.ranges.iter().zip(self.ranges.iter().skip(1)).map(|((_, end), (start, _))| start - end);
        let Some((nearest, _)) = gaps.enumerate().min_by_key(|(_, gap)| *gap) else { return };
        let (_, end) = self.ranges.remove(nearest + 1);
        if let Some(range) = self.ranges.get_mut(nearest) {
            range.1 = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tags::tests::pv_with_tags;

    fn pv(tag: &str) -> PhysicalVolume {
        pv_with_tags(&["other", tag])
    }

    fn extents(ranges: &[(u64, u64)]) -> VacatedExtents {
        VacatedExtents::new(Wipe::Discard, ranges.iter().copied())
    }

    #[test]
    fn vacated_extents_are_what_the_tag_says() {
        let vacated = extents(&[(5, 5), (0, 5), (20, 1)]);
        let tag = vacated.tag().unwrap();
        assert_eq!(tag.as_str(), "topolvm.io/vacated=discard:0-9:20-20");
        assert_eq!(VacatedExtents::of(&pv(tag.as_str())), Some(vacated));
        assert_eq!(VacatedExtents::tags_of(&pv(tag.as_str())).unwrap(), [tag]);
        assert_eq!(VacatedExtents::of(&pv("topolvm.io/evacuate=keep:0")), None);
    }

    #[test]
    fn vacated_extents_of_two_tags_are_those_of_both() {
        let pv = pv_with_tags(&["topolvm.io/vacated=discard:0-4", "topolvm.io/vacated=zero:20-20"]);
        assert_eq!(VacatedExtents::of(&pv).unwrap(), VacatedExtents::new(Wipe::Zero, [(0, 5), (20, 1)].into_iter()));
        assert_eq!(VacatedExtents::tags_of(&pv).unwrap().len(), 2);
    }

    #[test]
    fn vacated_extents_of_an_unknown_tag_are_the_whole_disk() {
        for value in ["", "burn:0-9", "zero:0", "zero:9-0", "zero:0-x"] {
            let found = VacatedExtents::of(&pv(&format!("topolvm.io/vacated={value}"))).unwrap();
            assert_eq!((found.how, found.without(&[(0, 2)], 10)), (Wipe::Zero, vec![(2, 9)]), "{value}");
        }
    }

    #[test]
    fn vacated_extents_that_volumes_have_are_left_out() {
        let vacated = extents(&[(0, 10), (20, 10)]);
        assert_eq!(vacated.without(&[], 100), [(0, 9), (20, 29)]);
        assert_eq!(vacated.without(&[(12, 3), (2, 3), (8, 15)], 25), [(0, 1), (5, 7), (23, 24)]);
        assert_eq!(vacated.without(&[(0, 100)], 100), []);
        assert_eq!(vacated.without(&[], 0), []);
    }

    #[test]
    fn vacated_extents_in_many_ranges_fit_into_a_tag() {
        let ranges = (0..500).map(|number| (number * 8_000_000 + 100_000_000, 1_000_000 * (number % 7 + 1)));
        let vacated = VacatedExtents::new(Wipe::Zero, ranges.clone());
        assert!(vacated.tag().is_ok());
        assert!(ranges.into_iter().all(|range| vacated.without(&[range], u64::MAX) != vacated.without(&[], u64::MAX)));
    }

    #[test]
    fn vacated_extents_of_two_moves_are_wiped_in_the_stricter_way() {
        let both = extents(&[(0, 10)]).with(&VacatedExtents::new(Wipe::Zero, [(5, 10)].into_iter()));
        assert_eq!(both, VacatedExtents::new(Wipe::Zero, [(0, 15)].into_iter()));
    }
}
