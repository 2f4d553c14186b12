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
#[case("--alloc normal --readahead=auto --addtag a --addtag b -pr", "linear")]
#[case("-Cn --raidintegrity n --type raid1", "raid1, 2 copies")]
#[case("-Ki2 -r16", "striped, 2 stripes")]
#[case("--raidmaxrecoveryrate 1m -m1 -R 4m", "raid1, 2 copies")]
fn options_say_the_layout(#[case] words: &str, #[case] layout: &str) {
    assert_eq!(parse(words).to_string(), layout);
}

fn check(words: &[&str], purpose: OptionsFor) -> Result<Vec<String>, String> {
    let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    check_options(&words, None, purpose).map_err(|refused| refused.to_string())
}

#[rstest]
#[case(&["-u"], "-u: lvcreate has no option -u")]
#[case(&["--no-such-option"], "lvcreate has no option --no-such-option")]
#[case(&["--stripes"], "--stripes requires a value")]
#[case(&["--config"], "--config requires a value")]
#[case(&["--mirrors 1"], "\"--mirrors 1\" is passed to lvcreate as one argument; write \"--mirrors=1\"")]
#[case(&["-i", "many"], "--stripes many: not a number up to 256")]
#[case(&["-m 1x"], "--mirrors  1x: not a number up to 256")]
#[case(&["--nosync=y"], "--nosync=y: this option takes no value")]
#[case(&["-Wy"], "-Wy: lvmd or the class already sets --wipesignatures, and LVM refuses a second one")]
#[case(&["--zero=maybe"], "--zero maybe: the value must be y or n")]
#[case(&["-C1"], "--contiguous 1: the value must be y or n")]
#[case(&["-m1", "--setautoactivation", "yes"], "--setautoactivation yes: the value must be y or n")]
#[case(&["-p", "x"], "--permission x: the value must be r or rw")]
#[case(&["--readahead=x"], "--readahead x: the value must be auto, none or a number of sectors")]
#[case(&["-m1", "-R", "x"], "--regionsize x: the value must be a number")]
#[case(&["--minor="], "--minor : the value must be a number")]
#[case(&["--alloc", "often"], "--alloc often: unknown allocation policy")]
#[case(&["--type=raid6", "-i2"], "--stripes 2: this type needs at least 3")]
#[case(&["--type=raid5", "-m1"], "--mirrors 1 is not possible with this type")]
#[case(&["-m1", "--raidintegrity", "y"], "--raidintegrity is only possible with --type")]
#[case(&["--type=raid0", "--raidintegrity=y"], "--raidintegrity y is not possible with this type")]
#[case(&["-Cy", "--alloc=cling"], "--contiguous y and --alloc cling contradict each other")]
#[case(&["--type=raid7"], "--type raid7: unknown LVM type")]
#[case(&["--type=cache-pool"], "--type cache-pool: with this type lvcreate does not create a volume of the requested \
                                size")]
#[case(&["-l100%FREE"], "-l100%FREE: with --extents lvcreate does not create a volume of the requested size")]
#[case(&["-L1G"], "-L1G: lvmd or the class already sets --size, and LVM refuses a second one")]
fn options_that_lvm_refuses_are_named(#[case] words: &[&str], #[case] reason: &str) {
    assert_eq!(check(words, OptionsFor::Thick).unwrap_err(), reason);
}

#[rstest]
#[case("-m1 @fast", "@fast is not an option; physical volumes cannot be listed here", 3)]
#[case("--type=raid1 --config a=b --config=c=d", "the effect of --config on the capacity is unknown", 3)]
#[case("--type=mirror -m1", "--type mirror: capacity calculation is not supported for this type", 9)]
#[case("-Cy -i2", "--contiguous y: capacity calculation is not supported for this policy", 9)]
#[case("--alloc=cling -m1", "--alloc cling: capacity calculation is not supported for this policy", 9)]
#[case("--alloc anywhere", "--alloc anywhere: capacity calculation is not supported for this policy", 9)]
#[case("--type raid1 --raidintegrity y", "--raidintegrity y: capacity calculation is not supported with checksums", 9)]
#[case("--type=vdo", "--type vdo: capacity calculation is not supported for this type", 9)]
fn options_of_unknown_effect_keep_their_layout(#[case] words: &str, #[case] reason: &str, #[case] extents: u64) {
    let list: Vec<_> = words.split_whitespace().collect();
    assert_eq!(check(&list, OptionsFor::Thick).unwrap().first().map(String::as_str), Some(reason));
    assert_eq!(parse(words).largest(EXTENT, &[vec![1, 3], vec![5]]), extents);
}

#[test]
fn options_are_refused_by_the_kind_of_volume() {
    assert_eq!(check(&["--type=raid1"], OptionsFor::Thin), Ok(Vec::new()));
    assert!(check(&["-V1G"], OptionsFor::Thin).is_err());
    for purpose in [OptionsFor::Any, OptionsFor::Thin] {
        assert!(check(&["-L1G"], purpose).is_ok());
        assert!(check(&["-y"], purpose).is_err() && check(&["--test"], purpose).is_err());
    }
}

#[test]
fn stripes_of_the_device_class_count() {
    let striping = Striping { stripes: NonZeroU32::new(2).unwrap(), stripe_size: Some("64".to_owned()) };
    let layout = Layout::parse(&["-m1".to_owned()], Some(&striping));
    assert_eq!((layout.to_string().as_str(), layout.step()), ("raid10, 2 stripes, 2 copies", 2));
    let twice = Layout::parse(&["-i3".to_owned()], Some(&striping));
    assert!(twice.to_string().contains("already sets --stripes, and LVM refuses a second one"), "{twice}");
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
fn largest_on_these_disks(#[case] words: &str, #[case] free: Vec<Vec<u64>>, #[case] extents: u64) {
    assert_eq!(parse(words).largest(EXTENT, &free), extents);
}

#[rstest]
#[case("linear", 1, "linear")]
#[case("striped", 3, "striped, 3 stripes")]
#[case("raid1", 3, "raid1, 3 copies")]
#[case("mirror", 2, "unknown: capacity calculation is not supported for type mirror with 2 images")]
#[case("raid5_ls", 3, "raid5, 2 stripes")]
#[case("raid6_zr", 5, "raid6, 3 stripes")]
#[case("raid10", 4, "raid10, 2 stripes, 2 copies")]
#[case("cache", 1, "unknown: capacity calculation is not supported for type cache with 1 images")]
#[case("raid10", 3, "unknown: capacity calculation is not supported for type raid10 with 3 images")]
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

#[rstest]
#[case('c')]
#[case('l')]
#[case('a')]
fn policy_of_a_volume_may_leave_its_growth_uncomputed(#[case] allocation: char) {
    let layout = Layout::of_segment("linear", 1, allocation);
    assert!(layout.to_string().contains("allocation policy"), "{layout}");
    assert_eq!(layout.largest(EXTENT, &[[3_u64, 4]]), 7);
}

const WORDS: &[&str] = &["", "-i2", "-m1", "--type=raid5", "--type=raid10"];

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
