//! The capacity of a device class for volumes of one layout. Pure.

use serde::{Deserialize, Serialize};

/// The largest volume that a device class can have with the options of an lvcreate option class, and the layout that
/// LVM gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutCapacity {
    /// Bytes of the largest volume.
    pub free: u64,
    /// Stripes of the layout.
    pub stripes: u64,
    /// Images of the layout, with copies and parity. Each is as large as the volume divided by the stripes.
    pub images: u64,
}

impl LayoutCapacity {
    /// Returns the capacity for volumes without stripes and copies.
    #[must_use]
    pub fn linear(free: u64) -> Self {
        Self { free, stripes: 1, images: 1 }
    }

    /// Returns the bytes by which the largest volume of this layout gets smaller at most when a volume of so many bytes
    /// is made with another layout on the same disks.
    ///
    /// One of the same layout takes its size. Of any other, all images are taken to lie where one image of this layout
    /// would: that gets shorter by their sum, and a volume by as much for each of its stripes. So 1 GiB of `raid1`
    /// takes 2 GiB from linear volumes, 1 GiB of a linear volume takes 1 GiB from `raid1`, and 2 GiB from volumes of
    /// two stripes. The metadata of images and the rounding to extents are not counted.
    #[must_use]
    pub fn taken_by(&self, other: &Self, bytes: u64) -> u64 {
        if self == other {
            return bytes;
        }
        let image = u128::from(bytes.div_ceil(other.stripes.max(1)));
        let images = image.saturating_mul(other.images.max(1).into());
        u64::try_from(images.saturating_mul(self.stripes.max(1).into())).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const LINEAR: LayoutCapacity = LayoutCapacity { free: 20, stripes: 1, images: 1 };
    const MIRRORED: LayoutCapacity = LayoutCapacity { free: 10, stripes: 1, images: 2 };
    const STRIPED: LayoutCapacity = LayoutCapacity { free: 20, stripes: 2, images: 2 };
    const RAID5: LayoutCapacity = LayoutCapacity { free: 15, stripes: 3, images: 4 };

    #[rstest]
    #[case::same(MIRRORED, MIRRORED, 5, 5)]
    #[case::copies_from_linear(LINEAR, MIRRORED, 5, 10)]
    #[case::linear_from_copies(MIRRORED, LINEAR, 5, 5)]
    #[case::linear_from_stripes(STRIPED, LINEAR, 5, 10)]
    #[case::stripes_from_linear(LINEAR, STRIPED, 5, 6)]
    #[case::parity_from_linear(LINEAR, RAID5, 6, 8)]
    #[case::copies_from_parity(RAID5, MIRRORED, 5, 30)]
    #[case::too_large(RAID5, MIRRORED, u64::MAX, u64::MAX)]
    #[case::nonsense(LayoutCapacity { stripes: 0, ..LINEAR }, LayoutCapacity { stripes: 0, images: 0, free: 1 }, 5, 5)]
    fn layout_capacity_taken_by_other_layouts_is_not_underestimated(
        #[case] asked: LayoutCapacity,
        #[case] made: LayoutCapacity,
        #[case] bytes: u64,
        #[case] taken: u64,
    ) {
        assert_eq!(asked.taken_by(&made, bytes), taken);
    }
}
