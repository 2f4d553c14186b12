//! The layout of a volume that is there, by its segment in LVM's report: what more of it takes.

use super::{Kind, Policy, Shape};
use crate::Segment;

/// The layout, or why there is none that can be computed. `allocation` is the policy in `lv_attr`.
pub(super) fn of(segment: &Segment, allocation: char) -> Result<Shape, String> {
    let Segment { kind: name, images, region_size } = segment;
    let unknown = || format!("the room that a volume of type {name} with {images} images takes is not computed");
    let base = name.split('_').next().unwrap_or(name);
    // `stripes` counts all images: also the parity of RAID 4, 5 and 6, and both copies of RAID 10, which LVM makes two of.
    let (kind, stripes, copies) = match base {
        "linear" | "striped" => (Kind::Plain, Some(*images), 1),
        "raid0" => (Kind::Raid0, Some(*images), 1),
        "raid1" => (Kind::Raid1, Some(1), *images),
        // The old type: its log is there, or in memory.
        "mirror" => (Kind::Raid0, Some(1), *images),
        "raid4" => (Kind::Raid4, images.checked_sub(1), 1),
        "raid5" => (Kind::Raid5, images.checked_sub(1), 1),
        "raid6" => (Kind::Raid6, images.checked_sub(2), 1),
        "raid10" => (Kind::Raid10, images.is_multiple_of(2).then_some(images / 2), 2),
        _ => return Err(unknown()),
    };
    let stripes = stripes.filter(|stripes| *stripes > 0 && copies > 0).ok_or_else(unknown)?;
    let policy = match allocation {
        'c' => Policy::Contiguous,
        'l' => Policy::Cling,
        'a' => Policy::Anywhere,
        _ => Policy::Normal,
    };
    let region_size = (*region_size).max(super::REGION_SIZE);
    Ok(Shape { kind, stripes, copies, policy, region_size, integrity: false, has_metadata: true })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use crate::{Layout, Segment};

    fn layout(kind: &str, images: u16) -> Layout {
        Layout::of_segment(&Segment { kind: kind.into(), images, region_size: 2 << 20 }, 'i')
    }

    #[rstest]
    #[case("linear", 1, "linear")]
    #[case("striped", 3, "striped, 3 stripes")]
    #[case("raid0_meta", 2, "raid0, 2 stripes")]
    #[case("raid1", 3, "raid1, 3 copies")]
    #[case("mirror", 2, "raid0, 2 copies")]
    #[case("raid5_ls", 3, "raid5, 2 stripes")]
    #[case("raid6_zr", 5, "raid6, 3 stripes")]
    #[case("raid10", 4, "raid10, 2 stripes, 2 copies")]
    fn every_image_counts(#[case] kind: &str, #[case] images: u16, #[case] expected: &str) {
        assert_eq!(layout(kind, images).to_string(), expected);
    }

    #[rstest]
    #[case("cache", 1)]
    #[case("raid5", 1)]
    #[case("raid10", 3)]
    #[case("raid1", 0)]
    fn what_is_not_understood_says_so(#[case] kind: &str, #[case] images: u16) {
        assert!(layout(kind, images).to_string().starts_with("unknown: "), "{}", layout(kind, images));
    }

    #[test]
    fn more_of_a_raid_takes_no_metadata() {
        // Ten extents on each of two disks.
        let free = [[10u64], [10]];
        assert_eq!(layout("raid1", 2).largest(4 << 20, &free), 10);
        let new = Layout::parse(&["--type=raid1".to_owned()], None);
        assert_eq!(new.largest(4 << 20, &free), 9);
    }
}
