//! How the extents of a volume lie on the physical volumes, and how large a volume of that layout can be.

mod allocation;
mod existing;
mod options;

use std::collections::BTreeSet;
use std::fmt;

use crate::{Segment, Striping};
use allocation::Request;

const MIB: u64 = 1 << 20;
/// lvmraid(7): two super blocks of 4 KiB, and a bit for each region of an image.
const RAID_SUPER_BLOCKS: u64 = 8192;
/// The kernel's bitmap of a RAID volume has room for so many regions; LVM doubles their size until they are fewer.
const MAX_REGIONS: u64 = 1 << 21;
/// lvm.conf(5) `activation/raid_region_size`: 2 MiB unless configured otherwise.
const REGION_SIZE: u64 = 2 * MIB;

/// Which layout `lvcreate` gives to a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One whose capacity is computed.
    Known(Shape),
    /// One that is not computed, or that `lvcreate` refuses. Its capacity counts as all that is free.
    Unknown {
        /// Why, naming the words, for people.
        reason: String,
    },
}

/// A layout that is understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    kind: Kind,
    /// Over how many images each copy of the data is spread.
    stripes: u16,
    /// How many copies of the data there are.
    copies: u16,
    policy: Policy,
    /// In bytes.
    region_size: u64,
    /// Whether each image has checksums beside it.
    integrity: bool,
    /// Whether the images have their metadata already: the volume is there, and grows.
    has_metadata: bool,
}

/// Families of LVM's segment types (lvmraid(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// linear and striped
    Plain,
    Raid0,
    /// raid0 with metadata
    Raid0Meta,
    Raid1,
    Raid4,
    Raid5,
    Raid6,
    Raid10,
}

/// lvm(8) "ALLOCATION", from the strictest to the most liberal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Policy {
    Contiguous,
    Cling,
    Normal,
    Anywhere,
}

impl Layout {
    /// What these words for `lvcreate`, and the stripes given beside them, mean with LVM's default configuration.
    pub fn parse(words: &[String], striping: Option<&Striping>) -> Self {
        match options::parse(words, striping) {
            Ok(shape) => Self::Known(shape),
            Err(reason) => Self::Unknown { reason },
        }
    }

    /// The layout of what LVM adds to a volume that ends with this segment. `allocation` is the policy in its `lv_attr`.
    pub(crate) fn of_segment(segment: &Segment, allocation: char) -> Self {
        match existing::of(segment, allocation) {
            Ok(shape) => Self::Known(shape),
            Err(reason) => Self::Unknown { reason },
        }
    }

    /// The largest size in extents of a new volume: LVM makes it, and refuses one that is [`step`](Self::step) larger.
    ///
    /// `extent_size` is in bytes. `free` has one item for each physical volume on which LVM may allocate, in the order of the
    /// volume group's metadata, because LVM takes the first one of several that are as good: the lengths in extents of its
    /// free areas from its beginning to its end. A sum in place of the lengths can be far too much for what is not linear.
    pub fn largest<A: AsRef<[u64]>>(&self, extent_size: u64, free: &[A]) -> u64 {
        let total: u64 = free.iter().flat_map(AsRef::as_ref).sum();
        let Self::Known(shape) = self else { return total };
        let step = self.step();
        let most = total / shape.images();
        let fits = |stripes: u64| stripes == 0 || shape.fits(stripes * step, extent_size, free);
        // The last size that fits before one that does not.
        let boundary = |mut low: u64, mut high: u64| {
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                if fits(middle) { low = middle } else { high = middle }
            }
            low
        };
        // LVM's allocator is greedy: now and then it fails with a size and not with a larger one. What it gets together when it
        // is asked for much shows where else to look.
        let found = boundary(0, most + 1);
        let mut others = BTreeSet::new();
        for eighths in 1..=8 {
            let asked = found + (most - found) * eighths / 8;
            others.extend(allocation::gathered(shape.request(asked * step, extent_size), free));
        }
        let mut better = others.into_iter().rev().map(|extents| extents / step).take_while(|&stripes| stripes > found);
        better.find(|&stripes| fits(stripes)).map_or(found, |better| boundary(better, most + 1)) * step
    }

    /// The largest size in extents that takes no more than `most` extents of the volume group in all, wherever these are.
    pub fn largest_of(&self, most: u64, extent_size: u64) -> u64 {
        let Self::Known(shape) = self else { return most };
        let step = self.step();
        let (mut low, mut high) = (0, most / shape.images() + 1);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if shape.taken(middle * step, extent_size) <= most { low = middle } else { high = middle }
        }
        low * step
    }

    /// Whether LVM can make a new volume of so many extents.
    pub fn fits<A: AsRef<[u64]>>(&self, extents: u64, extent_size: u64, free: &[A]) -> bool {
        match self {
            Self::Known(shape) => shape.fits(extents.next_multiple_of(self.step()), extent_size, free),
            Self::Unknown { .. } => extents <= free.iter().flat_map(AsRef::as_ref).sum(),
        }
    }

    /// Sizes are multiples of so many extents; LVM rounds up to them.
    pub fn step(&self) -> u64 {
        match self {
            Self::Known(shape) => u64::from(shape.stripes),
            Self::Unknown { .. } => 1,
        }
    }
}

impl Shape {
    fn parity(&self) -> u16 {
        match self.kind {
            Kind::Plain | Kind::Raid0 | Kind::Raid0Meta | Kind::Raid1 | Kind::Raid10 => 0,
            Kind::Raid4 | Kind::Raid5 => 1,
            Kind::Raid6 => 2,
        }
    }

    /// How many areas lie side by side.
    fn images(&self) -> u64 {
        u64::from(self.stripes) * u64::from(self.copies) + u64::from(self.parity())
    }

    /// Extents that a volume of so many takes from its group, redundancy included.
    fn taken(&self, extents: u64, extent_size: u64) -> u64 {
        let beside =
            self.metadata(extents, extent_size) + if self.integrity { self.checksums(extents, extent_size) } else { 0 };
        self.images().saturating_mul(extents.div_ceil(u64::from(self.stripes)).saturating_add(beside))
    }

    fn fits<A: AsRef<[u64]>>(&self, extents: u64, extent_size: u64, free: &[A]) -> bool {
        allocation::succeeds(self.request(extents, extent_size), free)
    }

    fn request(&self, extents: u64, extent_size: u64) -> Request {
        Request {
            data: self.stripes * self.copies,
            parity: self.parity(),
            multiple: u64::from(self.stripes),
            metadata: self.metadata(extents, extent_size),
            checksums: self.integrity.then(|| self.checksums(extents, extent_size)),
            extents,
            policy: self.policy,
            apart: self.kind != Kind::Plain && self.policy != Policy::Anywhere,
        }
    }

    /// Extents of checksums that each image has beside it: lvmraid(7) "Integrity" gives 4 MiB for each 500 MiB; the journal
    /// was found by trial. LVM rounds down, so extents of more than 8 MiB are too large for the checksums of a small volume.
    fn checksums(&self, extents: u64, extent_size: u64) -> u64 {
        let image = extents.div_ceil(u64::from(self.stripes)).saturating_mul(extent_size);
        let journal = match image.div_ceil(MIB) {
            0..=512 => 4,
            513..=1024 => 8,
            1025..=4096 => 32,
            _ => 64,
        };
        ((image / (500 * MIB) + 1) * 4 + journal).saturating_mul(MIB).checked_div(extent_size).unwrap_or(0)
    }

    /// Extents of metadata that each image has beside it.
    fn metadata(&self, extents: u64, extent_size: u64) -> u64 {
        if matches!(self.kind, Kind::Plain | Kind::Raid0) || self.has_metadata || extent_size == 0 {
            return 0;
        }
        let bytes = extents.max(1).saturating_mul(extent_size);
        // LVM keeps regions no larger than the volume.
        let mut region_size = self.region_size.min(1 << bytes.ilog2());
        while region_size < bytes / MAX_REGIONS {
            region_size *= 2;
        }
        // LVM counts those of raid10 once for each copy, although an image has one copy of its stripe.
        let counted = if self.kind == Kind::Raid10 { extents.saturating_mul(u64::from(self.copies)) } else { extents };
        let regions = counted.div_ceil(u64::from(self.stripes)).saturating_mul(extent_size) / region_size;
        (RAID_SUPER_BLOCKS + regions.div_ceil(8)).div_ceil(extent_size)
    }
}

/// For people: `raid10, 2 stripes, 2 copies`.
impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(shape) => shape.fmt(f),
            Self::Unknown { reason } => write!(f, "unknown: {reason}"),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            Kind::Plain if self.stripes > 1 => "striped",
            Kind::Plain => "linear",
            Kind::Raid0 => "raid0",
            Kind::Raid0Meta => "raid0_meta",
            Kind::Raid1 => "raid1",
            Kind::Raid4 => "raid4",
            Kind::Raid5 => "raid5",
            Kind::Raid6 => "raid6",
            Kind::Raid10 => "raid10",
        })?;
        if self.stripes > 1 {
            write!(f, ", {} stripes", self.stripes)?;
        }
        if self.copies > 1 {
            write!(f, ", {} copies", self.copies)?;
        }
        if self.integrity {
            f.write_str(", checksums")?;
        }
        match self.policy {
            Policy::Contiguous => f.write_str(", contiguous"),
            Policy::Cling => f.write_str(", cling"),
            Policy::Normal => Ok(()),
            Policy::Anywhere => f.write_str(", anywhere"),
        }
    }
}

#[cfg(test)]
mod tests;
