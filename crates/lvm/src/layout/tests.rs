//! Layouts of options, and the largest volumes on disks whose free areas are given in extents.

use std::num::NonZeroU32;

use proptest::collection::vec;
use proptest::prelude::*;
use rstest::rstest;

use super::*;

/// LVM's default extent: metadata of an image fits into one.
const EXTENT: u64 = 4 << 20;

fn parse(words: &str) -> Layout {
    let words: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
    Layout::parse(&words, None)
}

#[rstest]
#[case("", "linear")]
#[case("--type linear -m0", "linear")]
#[case("--type=striped --stripes=2 -I 64k", "striped, 2 stripes")]
#[case("--type raid0_meta -i4", "raid0_meta, 4 stripes")]
#[case("--type raid1 -m 2", "raid1, 3 copies")]
#[case("--mirrors 1 --nosync", "raid1, 2 copies")]
#[case("--type raid5_la -i3", "raid5, 3 stripes")]
#[case("--type raid6", "raid6, 3 stripes")]
#[case("-m1 -i3", "raid10, 3 stripes, 2 copies")]
#[case("--alloc anywhere -m1", "raid1, 2 copies, anywhere")]
#[case("-Cy", "linear, contiguous")]
#[case("--alloc cling --readahead=auto --addtag a --addtag b -pr", "linear, cling")]
#[case("-Ki2 -r16", "striped, 2 stripes")]
#[case("--type raid5 --raidintegrity y", "raid5, 2 stripes, checksums")]
#[case("--raidmaxrecoveryrate 1m -m1 -R 4m", "raid1, 2 copies")]
fn options_say_the_layout(#[case] words: &str, #[case] layout: &str) {
    assert_eq!(parse(words).to_string(), layout);
}

#[rstest]
#[case("-m1 @fast", "@fast is no option: it may limit volumes to some physical volumes")]
#[case("--type=mirror", "--type mirror: the capacity of this type is not computed")]
#[case("-u", "-u in -u is not understood")]
#[case("--stripes", "--stripes lacks its value")]
#[case("-i many", "--stripes many: not a number up to 256")]
#[case("--nosync=y", "--nosync=y: this option takes no value")]
#[case("--config a=b", "--config has no place in the options of a class, or its effect is not known")]
#[case("-Wy", "-Wy: LVM refuses --wipesignatures a second time, and it is there already")]
#[case("--alloc often", "--alloc often is not understood")]
#[case("--type=raid6 -i2", "--stripes 2: this type needs 3 or more")]
#[case("--type=raid5 -m1", "--mirrors 1 is not possible with this type")]
#[case("-m1 --raidintegrity y", "--raidintegrity is only possible with --type")]
fn what_is_not_understood_is_named(#[case] words: &str, #[case] reason: &str) {
    let layout = parse(words);
    assert_eq!(layout, Layout::Unknown { reason: reason.to_owned() });
    assert_eq!(layout.largest(EXTENT, &[vec![1, 2], vec![3]]), 6, "all that is free");
}

#[test]
fn stripes_of_the_device_class_count() {
    let striping = Striping { stripes: NonZeroU32::new(2).unwrap(), stripe_size: Some("64".to_owned()) };
    let layout = Layout::parse(&["-m1".to_owned()], Some(&striping));
    assert_eq!((layout.to_string().as_str(), layout.step()), ("raid10, 2 stripes, 2 copies", 2));
    let twice = Layout::parse(&["-i3".to_owned()], Some(&striping));
    assert!(twice.to_string().contains("LVM refuses --stripes a second time"), "{twice}");
}

#[rstest]
#[case::linear("", vec![vec![10], vec![4, 3]], 17)]
#[case::disks_are_even("-i2", vec![vec![10], vec![10], vec![10], vec![10], vec![10]], 40)]
#[case::disks_are_even("--type=raid5", vec![vec![10], vec![10], vec![10]], 18)]
#[case::disks_are_even("--type=raid6", vec![vec![10], vec![10], vec![10], vec![10], vec![10]], 27)]
#[case::one_is_shorter("-m1", vec![vec![10], vec![7]], 6)]
#[case::one_is_shorter("-m1", vec![vec![10], vec![10], vec![7], vec![10]], 16)]
#[case::one_is_shorter("--type=raid10", vec![vec![10], vec![10], vec![10], vec![7]], 12)]
#[case::one_extent_is_for_the_metadata("-m1", vec![vec![1], vec![1]], 0)]
#[case::one_extent_is_for_the_metadata("-m1", vec![vec![1], vec![1], vec![1], vec![1]], 1)]
#[case::images_go_on_where_they_are("-m1", vec![vec![5, 5], vec![3, 3, 3]], 8)]
#[case::parity_goes_on_where_all_are_even("--type=raid5", vec![vec![5, 5], vec![5, 5], vec![5, 5]], 18)]
#[case::parity_goes_on_where_all_are_even("--type=raid5", vec![vec![5, 5], vec![5, 5], vec![5, 4]], 8)]
#[case::something_is_left_on_a_disk_of_another_image("-m1", vec![vec![10], vec![20], vec![15]], 14)]
#[case::too_few_disks("-m2", vec![vec![10], vec![10]], 0)]
#[case::in_one_piece("-Cy", vec![vec![6, 4], vec![3]], 6)]
#[case::on_the_same_disks("-m1 --alloc=cling", vec![vec![6, 4], vec![6, 4], vec![9]], 8)]
#[case::side_by_side_on_one_disk("-m1 --alloc=anywhere", vec![vec![10]], 4)]
#[case::checksums("--type=raid1 --raidintegrity y", vec![vec![100], vec![100]], 97)]
#[case::checksums("--type=raid1 --raidintegrity y", vec![vec![2598], vec![2598]], 2560)]
#[case::checksums_in_one_piece("--type=raid1 --raidintegrity y", vec![vec![10, 9], vec![10, 9]], 7)]
fn largest_on_these_disks(#[case] words: &str, #[case] free: Vec<Vec<u64>>, #[case] extents: u64) {
    assert_eq!(parse(words).largest(EXTENT, &free), extents);
}

#[rstest]
#[case("linear", 1, "linear")]
#[case("striped", 3, "striped, 3 stripes")]
#[case("raid1", 3, "raid1, 3 copies")]
#[case("mirror", 2, "raid0, 2 copies")]
#[case("raid5_ls", 3, "raid5, 2 stripes")]
#[case("raid6_zr", 5, "raid6, 3 stripes")]
#[case("raid10", 4, "raid10, 2 stripes, 2 copies")]
#[case("cache", 1, "unknown: the room of a volume of type cache with 1 images is not computed")]
#[case("raid10", 3, "unknown: the room of a volume of type raid10 with 3 images is not computed")]
fn what_is_added_to_a_volume_has_its_layout_and_no_metadata(
    #[case] kind: &str,
    #[case] images: u16,
    #[case] expected: &str,
) {
    let layout = Layout::of_segment(kind, images, 'i');
    assert_eq!(layout.to_string(), expected);
    if let Layout::Known(shape) = &layout {
        assert_eq!(layout.largest(EXTENT, &vec![[10_u64]; usize::from(images)]), 10 * shape.stripes);
    }
}

const WORDS: &[&str] = &[
    "",
    "-i2",
    "-m1",
    "--type=raid5",
    "--type=raid10",
    "-Cy -i2",
    "-m1 --alloc=anywhere",
    "--type=raid1 --raidintegrity y",
];

proptest! {
    #[test]
    fn the_largest_with_what_is_beside_it_fits_into_what_is_free(
        words in prop::sample::select(WORDS), free in vec(vec(0..40_u64, 0..4), 0..7),
    ) {
        let (layout, total) = (parse(words), free.iter().flatten().sum::<u64>());
        let largest = layout.largest(EXTENT, &free);
        prop_assert!(largest <= layout.largest_of(total, EXTENT));
        prop_assert!(layout.fits(largest, EXTENT, &free) && !layout.fits(largest + 1, EXTENT, &free));
    }
}
