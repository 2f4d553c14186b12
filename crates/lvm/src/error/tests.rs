use rstest::rstest;

use super::*;

fn classify(code: i32, stderr: &str) -> Error {
    let (vg, name) = ("vg1".parse().unwrap(), "a".parse().unwrap());
    let output = Output { code: Some(code), stderr: stderr.to_owned(), ..Output::default() };
    Error::from_output(&LvmCommand::remove(&vg, &name), &vg, Some(&name), &output)
}

fn kind(error: &Error) -> String {
    let text = format!("{error:?}");
    text.split(['(', ' ']).next().unwrap().to_owned()
}

// The texts are what LVM 2.03.16 wrote.
#[rstest]
#[case::group("GroupNotFound", "  Volume group \"vg1\" not found\n  Cannot process volume group vg1\n")]
#[case::two_groups(
    "DuplicateName",
    "  WARNING: VG name vg1 is used by VGs p9XfaK and asplef.\n  Fix duplicate VG names with vgrename uuid, a \
     device filter, or system IDs.\n  Multiple VGs found with the same name: skipping vg1\n  Use --select \
     vg_uuid=<uuid> in place of the VG name.\n"
)]
#[case::foreign("ForeignGroup", "  Cannot access VG vg1 with system ID node-old with local system ID node-new.\n")]
#[case::foreign_without_id(
    "ForeignGroup",
    "  Cannot access VG vg1 with system ID node-old with unknown local system ID.\n"
)]
#[case::exported("ExportedGroup", "  Volume group vg1 is exported\n")]
#[case::volume("VolumeNotFound", "  Failed to find logical volume \"vg1/a\"\n")]
#[case::volume_to_resize("VolumeNotFound", "  Logical volume a not found in volume group vg1.\n")]
#[case::volume_to_rename("VolumeNotFound", "  Existing logical volume \"a\" not found in volume group \"vg1\"\n")]
#[case::full("NoSpace", "  Volume group \"vg1\" has insufficient free space (253 extents): 1193 required.\n")]
#[case::full_for_raid("NoSpace", "  Insufficient free space: 6 extents needed, but only 4 available\n")]
#[case::full_for_layout(
    "NoSpace",
    "  Insufficient suitable allocatable extents for logical volume a: 4 more required\n"
)]
#[case::full_disk(
    "NoSpace",
    "  WARNING: No free extents on physical volume \"/dev/loop1\".\n  No specified PVs have space available.\n"
)]
#[case::full_pool("NoSpace", "  Free space in pool vg1/p is above threshold, new volumes are not allowed.\n")]
#[case::full_pool_for_volumes(
    "NoSpace",
    "  WARNING: Thin pool vg1/p is out of data space.\n  Cannot create new thin volume, free space in thin pool \
     vg1/p reached threshold.\n"
)]
#[case::exists("AlreadyExists", "  Logical Volume \"a\" already exists in volume group \"vg1\"\n")]
#[case::exists_as_pool("AlreadyExists", "  Logical volume a already exists in Volume group vg1.\n")]
#[case::mounted("Busy", "  Logical volume vg1/a contains a filesystem in use.\n")]
#[case::open("Busy", "  Logical volume vg1/a in use.\n")]
#[case::used("Busy", "  Logical volume vg1/a is used by another device.\n")]
#[case::locked(
    "Busy",
    "  /run/lock/lvm/V_vg1: flock failed: Resource temporarily unavailable\n  Can't get lock for vg1.\n  Cannot \
     process volume group vg1\n"
)]
#[case::frozen(
    "Frozen",
    "  device-mapper: suspend ioctl on  (254:5) failed: Device or resource busy\n  Failed to suspend thin snapshot \
     origin vg1/a.\n"
)]
#[case::part_of_pool(
    "PartIsActive",
    "  Activation of logical volume vg1/p is prohibited while logical volume vg1/p_tmeta is active.\n  Aborting. \
     Failed to locally activate thin pool vg1/p.\n"
)]
#[case::moved("Locked", "  Can't resize locked logical volume vg1/a.\n")]
#[case::moved_and_removed("Locked", "  Can't remove locked logical volume vg1/a.\n")]
#[case::moved_and_renamed("Locked", "  Cannot rename locked LV a\n")]
#[case::incomplete(
    "Incomplete",
    "  WARNING: Couldn't find device with uuid 2q00nI-QCf9.\n  WARNING: VG vg1 is missing PV 2q00nI-QCf9 (last \
     written to /dev/loop1).\n  Cannot change VG vg1 while PVs are missing.\n  See vgreduce --removemissing and \
     vgextend --restoremissing.\n  Cannot process volume group vg1\n"
)]
#[case::broken_pool(
    "Exit",
    "  WARNING: Thin pool vg1/p has unexpected transaction id 1, expecting 2.\n  Cannot create new thin volume, \
     free space in thin pool vg1/p reached threshold.\n"
)]
#[case::failed_pool(
    "Exit",
    "  WARNING: Thin pool vg1/p is failed.\n  Cannot create new thin volume, free space in thin pool vg1/p \
     reached threshold.\n"
)]
#[case::other("Exit", "  Number of stripes (9) must not exceed number of physical volumes (1)\n")]
#[case::silent("Exit", "")]
fn what_lvm_says_is_understood(#[case] expected: &str, #[case] stderr: &str) {
    assert_eq!(kind(&classify(5, stderr)), expected);
}

#[rstest]
#[case::another_group("  Volume group \"vg2\" not found\n")]
#[case::another_volume("  Failed to find logical volume \"vg1/ab\"\n")]
#[case::part_of_a_line("  foo: Volume group \"vg1\" not found\n")]
fn not_found_is_believed_only_about_what_was_asked_for(#[case] stderr: &str) {
    assert_eq!(kind(&classify(5, stderr)), "Exit");
}

#[rstest]
#[case(3)]
#[case(1)]
#[case(127)]
fn not_found_is_believed_only_with_lvms_own_exit_status(#[case] code: i32) {
    assert_eq!(kind(&classify(code, "  Failed to find logical volume \"vg1/a\"\n")), "Exit");
    assert_eq!(kind(&classify(code, "  Volume group \"vg1\" not found\n")), "Exit");
}

#[test]
fn a_warning_decides_nothing() {
    assert_eq!(kind(&classify(5, "  WARNING: Can't get lock for vg1.\n  Something else.\n")), "Exit");
}

#[test]
fn pool_left_by_a_killed_lvm_is_reported_with_a_fix() {
    let remedy = |stderr: &str| classify(5, stderr).to_string();
    let message =
        remedy("  Thin pool vg1-p-tpool already contain thin device with device_id 12. Manual intervention\n");
    assert!(message.contains("`dmsetup message vg1-POOL-tpool 0 'delete 12'`"), "{message}");
    let message = remedy("  Thin pool vg1-p-tpool (254:4) unexpected transaction id 1, expecting 2\n");
    assert!(message.contains("unexpected transaction id 1") && message.contains("vgcfgrestore --force"), "{message}");
}

#[test]
fn the_message_is_one_line_with_command_and_status() {
    let error = classify(5, "  WARNING: a\n\n  b went wrong.\n");
    assert_eq!(error.to_string(), "lvremove failed (exit status 5): WARNING: a; b went wrong.");
}

#[test]
fn a_long_message_keeps_its_end() {
    let error = classify(5, &format!("{}\nthe reason", "é warning\n".repeat(100_000)));
    let text = error.to_string();
    assert!(text.len() < 2000 && text.ends_with("the reason"), "{}", text.len());
}
