//! The extents that a volume takes from its group, by segment type, and the size of the largest volume that LVM makes.

mod option_values;
mod options;

use std::cmp::Reverse;
use std::fmt;

use crate::Striping;
use options::Parsed;
pub use options::{OptionsFor, RefusedOptions};

/// Most bytes of metadata of a RAID image: lvmraid(7) two super blocks of 4 KiB; a bitmap of 2^21 regions, for LVM
/// doubles the size of regions until they are no more, and the block in which it ends.
const RAID_METADATA: u64 = (8 + 256 + 4) << 10;

/// The layout that `lvcreate` gives to a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One whose capacity is computed.
    Known(Shape),
    /// One that is not computed, or that `lvcreate` refuses. Its capacity counts as all that is free.
    Unknown {
        /// The reason, naming the arguments, for people.
        reason: String,
    },
}

/// A layout that is understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    segment_type: &'static SegmentType,
    stripes: u64,
    copies: u64,
    /// True if each image gets metadata in front of it; one that grows has it.
    metadata: bool,
}

/// A segment type of LVM (lvmraid(7)).
#[derive(Debug, PartialEq, Eq)]
struct SegmentType {
    name: &'static str,
    /// Images of parity.
    parity: u64,
    metadata: bool,
    least_stripes: u64,
}

const SEGMENT_TYPES: &[SegmentType] = &[
    SegmentType { name: "linear", parity: 0, metadata: false, least_stripes: 1 },
    SegmentType { name: "raid0", parity: 0, metadata: false, least_stripes: 2 },
    SegmentType { name: "raid0_meta", parity: 0, metadata: true, least_stripes: 2 },
    SegmentType { name: "raid1", parity: 0, metadata: true, least_stripes: 1 },
    SegmentType { name: "raid4", parity: 1, metadata: true, least_stripes: 2 },
    SegmentType { name: "raid5", parity: 1, metadata: true, least_stripes: 2 },
    SegmentType { name: "raid6", parity: 2, metadata: true, least_stripes: 3 },
    SegmentType { name: "raid10", parity: 0, metadata: true, least_stripes: 2 },
];

impl Layout {
    /// Returns the layout that results from these arguments for `lvcreate` and the stripes given in addition to them,
    /// with LVM's default settings. See [`check_options`].
    pub fn parse(words: &[String], striping: Option<&Striping>) -> Self {
        match options::parse(words, striping, OptionsFor::Thick) {
            Ok(Parsed { shape: Some(shape), .. }) => Self::Known(shape),
            Ok(Parsed { reasons, .. }) => Self::Unknown { reason: reasons.join("; ") },
            Err(refused) => Self::Unknown { reason: refused.to_string() },
        }
    }

    /// Returns the layout of what LVM adds to a volume that ends with a segment of this type and so many images.
    /// `allocation` is the policy in its `lv_attr`.
    pub(crate) fn of_segment(segment_type: &str, images: u16, allocation: char) -> Self {
        let images = u64::from(images);
        let copies = match segment_type {
            "raid1" => images,
            name if name.starts_with("raid10") => 2,
            _ => 1,
        };
        let shape = SegmentType::find(segment_type).and_then(|segment_type| {
            // LVM's number of stripes is that of all images.
            let data =
                images.checked_sub(segment_type.parity).filter(|data| *data > 0 && data.is_multiple_of(copies))?;
            Some(Shape { segment_type, stripes: data / copies, copies, metadata: false })
        });
        match shape {
            // lvm(8) "ALLOCATION": contiguous, cling, anywhere
            Some(_) if matches!(allocation, 'c' | 'l' | 'a') => Self::Unknown {
                reason: format!("capacity calculation is not supported for the allocation policy {allocation:?}"),
            },
            Some(shape) => Self::Known(shape),
            None => Self::Unknown {
                reason: format!("capacity calculation is not supported for type {segment_type} with {images} images"),
            },
        }
    }

    /// Returns the size in extents of the largest new volume. On odd shapes of free areas LVM may make a larger one,
    /// never a smaller one only.
    ///
    /// `extent_size` is in bytes. `free` has one item for each physical volume on which LVM may allocate: the lengths
    /// in extents of its free areas.
    pub fn largest<A: AsRef<[u64]>>(&self, extent_size: u64, free: &[A]) -> u64 {
        match self {
            Self::Known(shape) => shape.largest_image(extent_size, &longest_first(free)) * shape.stripes,
            Self::Unknown { .. } => free.iter().flat_map(AsRef::as_ref).sum(),
        }
    }

    /// Returns the largest size in extents that takes no more than `most` extents of the volume group in all, wherever
    /// these are.
    pub fn largest_of(&self, most: u64, extent_size: u64) -> u64 {
        let Self::Known(shape) = self else { return most };
        (most / shape.images()).saturating_sub(shape.metadata(extent_size)) * shape.stripes
    }

    /// Returns whether a new volume of so many extents is no larger than the [largest](Self::largest).
    pub fn fits<A: AsRef<[u64]>>(&self, extents: u64, extent_size: u64, free: &[A]) -> bool {
        extents.next_multiple_of(self.step()) <= self.largest(extent_size, free)
    }

    /// Returns the number of extents of which sizes are multiples; LVM rounds up to them.
    pub fn step(&self) -> u64 {
        self.stripes()
    }

    /// Returns the number of stripes: each image is as large as the volume divided by them.
    pub fn stripes(&self) -> u64 {
        match self {
            Self::Known(shape) => shape.stripes,
            Self::Unknown { .. } => 1,
        }
    }

    /// Returns the number of images that lie side by side, with copies and parity.
    pub fn images(&self) -> u64 {
        match self {
            Self::Known(shape) => shape.images(),
            Self::Unknown { .. } => 1,
        }
    }
}

/// Checks arguments for `lvcreate`, and the stripes given in addition to them. Returns the reasons why the capacity may
/// differ from that of their [layout](Layout::parse). The error is a mistake because of which LVM is certain to refuse
/// them.
pub fn check_options(
    words: &[String],
    striping: Option<&Striping>,
    purpose: OptionsFor,
) -> Result<Vec<String>, RefusedOptions> {
    options::parse(words, striping, purpose).map(|parsed| parsed.reasons)
}

impl SegmentType {
    /// Returns the type of this name; LVM appends a variant to some, as in `raid5_ls`.
    fn find(name: &str) -> Option<&'static Self> {
        let family = match name {
            "striped" => "linear",
            "raid0_meta" => name,
            _ => name.split('_').next()?,
        };
        SEGMENT_TYPES.iter().find(|found| found.name == family)
    }
}

impl Shape {
    /// Returns the number of images that lie side by side, each on a separate physical volume.
    fn images(&self) -> u64 {
        self.stripes * self.copies + self.segment_type.parity
    }

    /// Returns the extents of metadata in front of each image.
    fn metadata(&self, extent_size: u64) -> u64 {
        if self.metadata { RAID_METADATA.div_ceil(extent_size.max(1)) } else { 0 }
    }

    /// Returns the extents of the largest image. LVM gives each image an area on a separate disk, the longest first,
    /// and continues in other areas of these disks, then on other disks. As soon as LVM could place an image on the
    /// disk of another because of left space there, the following areas do not count.
    fn largest_image(&self, extent_size: u64, disks: &[Vec<u64>]) -> u64 {
        let free = |disk: &Vec<u64>| disk.iter().sum::<u64>();
        let Ok(images) = usize::try_from(self.images()) else { return 0 };
        if images == 1 {
            return disks.iter().map(free).sum();
        }
        let metadata = self.metadata(extent_size);
        let (mut length, mut rest) = (0, disks);
        while let Some((group, others)) = rest.split_at_checked(images) {
            let mut taken = group.last().map_or(0, |disk| longest(disk));
            if length == 0 && taken > metadata && self.stays(group, others) {
                taken = group.iter().map(free).min().unwrap_or(0);
            }
            let is_left = group.iter().any(|disk| free(disk) > taken);
            let is_last = is_left || (length == 0 && taken < metadata);
            length += taken;
            if is_last {
                break;
            }
            rest = others;
        }
        length.saturating_sub(metadata)
    }

    /// Returns whether each image goes on in the other areas of its disk. LVM searches for them unless there is parity,
    /// when it gives areas to images by their length.
    fn stays(&self, group: &[Vec<u64>], others: &[Vec<u64>]) -> bool {
        let is_even = others.is_empty() && group.windows(2).all(|pair| matches!(pair, [one, next] if one == next));
        self.segment_type.parity == 0 || is_even
    }
}

/// Returns the free areas of the disks that have any, the longest areas and the disks with these first.
fn longest_first<A: AsRef<[u64]>>(free: &[A]) -> Vec<Vec<u64>> {
    let areas = |disk: &A| disk.as_ref().iter().copied().filter(|length| *length > 0).collect();
    let mut disks: Vec<Vec<u64>> = free.iter().map(areas).filter(|areas: &Vec<u64>| !areas.is_empty()).collect();
    for areas in &mut disks {
        areas.sort_unstable_by_key(|length| Reverse(*length));
    }
    disks.sort_by_key(|areas| Reverse(longest(areas)));
    disks
}

fn longest(areas: &[u64]) -> u64 {
    areas.first().copied().unwrap_or(0)
}

/// For people: `raid10, 2 stripes, 2 copies`.
impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Shape { segment_type, stripes, copies, .. } = match self {
            Self::Known(shape) => shape,
            Self::Unknown { reason } => return write!(f, "unknown: {reason}"),
        };
        f.write_str(if segment_type.name == "linear" && *stripes > 1 { "striped" } else { segment_type.name })?;
        if *stripes > 1 {
            write!(f, ", {stripes} stripes")?;
        }
        if *copies > 1 {
            write!(f, ", {copies} copies")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
