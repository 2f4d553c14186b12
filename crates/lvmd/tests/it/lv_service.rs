//! Creating and resizing volumes.

use std::time::Duration;

use futures::future::join_all;
use rstest::rstest;
use tonic::Code;
use topolvm_proto::lvmd::{CreateLvRequest, CreateLvSnapshotRequest};
use topolvm_testkit::lvm::{EXTENT, FakeVolume, Fault};

use crate::node::{GIB, MANAGED, MIB, Node, code, create_request, snapshot_request};

#[tokio::test(start_paused = true)]
async fn a_volume_is_created_with_its_tags_and_its_real_size() {
    let node = Node::start().await;
    let request = CreateLvRequest {
        tags: vec!["testtag1".to_owned(), "topolvm.io/x=y".to_owned()],
        ..create_request("ssd", "a", 4096)
    };
    let volume = node.create_with(request).await.unwrap();
    assert_eq!(volume.name, "a");
    assert_eq!(volume.size_bytes, i64::try_from(EXTENT).unwrap());
    assert_eq!((volume.dev_major, volume.path.as_str(), volume.attr.as_str()), (253, "/dev/vg-ssd/a", "-wi-a-----"));
    assert_eq!(node.lvm.volume("vg-ssd", "a").unwrap().tags, ["testtag1", "topolvm.io/x=y", MANAGED]);
}

#[tokio::test(start_paused = true)]
async fn the_empty_class_is_the_default_class() {
    let node = Node::start().await;
    node.create("", "a", GIB).await.unwrap();
    assert_eq!(node.lvm.volumes("vg-ssd"), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn a_class_says_how_its_volumes_are_made() {
    let node = Node::start().await;
    node.create("hdd", "a", GIB).await.unwrap();
    assert_eq!(
        node.created(),
        "lvcreate -n a -L 1073741824b -W y -y --addtag topolvm.io/managed-by=lvmd --addtag \
         'topolvm.io/making=/run/topolvm/lvmd.sock#' -i 2 -I 64k --readahead=8 vg-hdd"
    );
}

#[tokio::test(start_paused = true)]
async fn lvcreate_option_class_replaces_device_class_settings() {
    let node = Node::start().await;
    let request = CreateLvRequest { lvcreate_option_class: "mirrored".to_owned(), ..create_request("hdd", "a", GIB) };
    node.create_with(request).await.unwrap();
    let created = node.created();
    assert!(created.ends_with("/lvmd.sock#' --type=raid1 vg-hdd"), "{created}");
}

#[tokio::test(start_paused = true)]
async fn a_size_is_rounded_up_to_whole_stripes() {
    let node = Node::start().await;
    let volume = node.create("hdd", "a", EXTENT).await.unwrap();
    assert_eq!(volume.size_bytes, i64::try_from(2 * EXTENT).unwrap());
}

#[tokio::test(start_paused = true)]
async fn more_than_is_free_is_refused_with_the_numbers() {
    let node = Node::start().await;
    let status = node.create("ssd", "a", 11 * GIB).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "no enough space left on VG: free=9663676416, requested=11811160064");
    assert_eq!(node.lvm.count("lvcreate"), 0);
}

#[tokio::test(start_paused = true)]
async fn the_spare_is_never_given_away() {
    let node = Node::start().await;
    node.create("ssd", "a", 9 * GIB).await.unwrap();
    assert_eq!(code(node.create("ssd", "b", 4096).await), Code::ResourceExhausted);
    assert_eq!(code(node.resize("ssd", "a", (9 * GIB + 1).try_into().unwrap()).await), Code::ResourceExhausted);
    assert_eq!(node.lvm.free("vg-ssd"), GIB);
}

#[tokio::test(start_paused = true)]
async fn the_last_extent_can_be_used_and_not_one_byte_more() {
    let node = Node::start().await;
    node.create("ssd", "a", 9 * GIB - EXTENT).await.unwrap();
    assert_eq!(code(node.create("ssd", "b", EXTENT + 4096).await), Code::ResourceExhausted);
    node.create("ssd", "b", EXTENT).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_group_whose_free_space_lvm_cannot_use_is_full_too() {
    let node = Node::start().await;
    node.lvm.fail(
        "lvcreate",
        1,
        Fault::says("Insufficient suitable allocatable extents for logical volume a: 4 more required"),
    );
    assert_eq!(code(node.create("ssd", "a", GIB).await), Code::ResourceExhausted);
}

#[tokio::test(start_paused = true)]
async fn volumes_created_in_parallel_never_take_more_than_there_is() {
    let node = Node::start().await;
    node.lvm.set_latency(Duration::from_millis(20));
    let names: Vec<_> = (0..50).map(|number| format!("v{number}")).collect();
    let results = join_all(names.iter().map(|name| node.create("ssd", name, 512 * MIB))).await;
    let (made, refused): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    assert_eq!(made.len(), 18, "9 GiB make 18 volumes of 512 MiB");
    assert!(refused.into_iter().all(|result| code(result) == Code::ResourceExhausted));
    assert_eq!(node.lvm.free("vg-ssd"), GIB);
}

#[tokio::test(start_paused = true)]
async fn volumes_grown_in_parallel_never_take_more_than_there_is() {
    let node = Node::start().await;
    for name in ["a", "b", "c", "d"] {
        node.create("ssd", name, GIB).await.unwrap();
    }
    node.lvm.set_latency(Duration::from_millis(20));
    let wanted = i64::try_from(3 * GIB).unwrap();
    let results = join_all(["a", "b", "c", "d"].map(|name| node.resize("ssd", name, wanted))).await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 2, "5 GiB are left, each wants 2");
    assert_eq!(node.lvm.free("vg-ssd"), 2 * GIB);
}

#[tokio::test(start_paused = true)]
async fn one_volume_group_does_not_wait_for_another() {
    let node = Node::start().await;
    let mut slow = node.lvm.pause("lvcreate");
    let on_ssd = node.create("ssd", "slow", GIB);
    let on_hdd = async {
        slow.reached().await;
        node.create("hdd", "quick", GIB).await.unwrap();
        assert_eq!(node.lvm.volumes("vg-ssd"), Vec::<String>::new());
        slow.resume();
    };
    let (created, ()) = tokio::join!(on_ssd, on_hdd);
    created.unwrap();
}

#[tokio::test(start_paused = true)]
async fn creating_again_after_a_lost_answer_is_success() {
    let node = Node::start().await;
    let first = node.create("ssd", "a", GIB).await.unwrap();
    assert_eq!(node.create("ssd", "a", GIB).await.unwrap(), first);
    assert_eq!(node.create("ssd", "a", GIB - 4096).await.unwrap(), first, "a larger volume will do");
    assert_eq!(node.lvm.count("lvcreate"), 1);
}

#[tokio::test(start_paused = true)]
async fn creating_again_is_success_in_a_full_group() {
    let node = Node::start().await;
    let first = node.create("ssd", "a", 9 * GIB).await.unwrap();
    assert_eq!(node.free("ssd").await.unwrap(), 0);
    assert_eq!(node.create("ssd", "a", 9 * GIB).await.unwrap(), first);
    assert_eq!(node.lvm.count("lvcreate"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_volume_of_that_name_that_is_too_small_is_in_the_way() {
    let node = Node::start().await;
    node.create("ssd", "a", GIB).await.unwrap();
    let status = node.create("ssd", "a", 2 * GIB).await.unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists);
    assert_eq!(status.message(), "logical volume vg-ssd/a already exists and has only 1073741824 bytes");
}

#[tokio::test(start_paused = true)]
async fn a_thin_pool_of_that_name_is_in_the_way() {
    let node = Node::start().await;
    node.lvm.add_volume("vg-ssd", "pool", FakeVolume::thin_pool(2 * GIB));
    assert_eq!(code(node.create("ssd", "pool", GIB).await), Code::AlreadyExists);
}

#[tokio::test(start_paused = true)]
async fn lvcreate_race_with_a_foreign_volume_is_already_exists() {
    let node = Node::start().await;
    let lvm = node.lvm.clone();
    node.lvm.before("lvcreate", move |_| lvm.add_volume("vg-ssd", "a", FakeVolume::thick(GIB)));
    assert_eq!(code(node.create("ssd", "a", GIB).await), Code::AlreadyExists);
}

#[tokio::test(start_paused = true)]
async fn volume_creation_is_retried_cleanly_after_a_timeout() {
    let node = Node::start().await;
    node.lvm.fail_after_success("lvchange", 1, Fault::Timeout);
    assert_eq!(code(node.create("ssd", "a", GIB).await), Code::DeadlineExceeded);
    node.create("ssd", "a", GIB).await.unwrap();
    assert_eq!((node.lvm.count("lvcreate"), node.lvm.count("lvremove")), (2, 1));
}

#[rstest]
#[case(0)]
#[case(-1)]
#[case(4097)]
#[case(i64::MIN)]
#[case(i64::MAX)]
#[tokio::test(start_paused = true)]
async fn a_size_that_is_no_multiple_of_4096_is_invalid(#[case] size_bytes: i64) {
    let node = Node::start().await;
    let request = CreateLvRequest { size_bytes, ..create_request("ssd", "a", 0) };
    assert_eq!(code(node.create_with(request).await), Code::InvalidArgument);
}

#[tokio::test(start_paused = true)]
async fn the_largest_size_there_is_is_too_large() {
    let node = Node::start().await;
    let bytes = (1 << 63) - 4096;
    assert_eq!(code(node.create("ssd", "a", bytes).await), Code::ResourceExhausted);
    node.create("ssd", "b", GIB).await.unwrap();
    assert_eq!(code(node.resize("ssd", "b", i64::MAX).await), Code::ResourceExhausted);
}

#[rstest]
#[case("")]
#[case("-y")]
#[case("--config=x")]
#[case("../x")]
#[case("vg-hdd/x")]
#[case("a b")]
#[case("snapshot")]
#[tokio::test(start_paused = true)]
async fn a_name_that_could_mean_something_else_never_reaches_lvm(#[case] name: &str) {
    let node = Node::start().await;
    let before = node.lvm.commands().len();
    assert_eq!(code(node.create("ssd", name, GIB).await), Code::InvalidArgument);
    assert_eq!(code(node.remove("ssd", name).await), Code::InvalidArgument);
    assert_eq!(code(node.resize("ssd", name, 1).await), Code::InvalidArgument);
    assert_eq!(node.lvm.commands().len(), before);
}

#[tokio::test(start_paused = true)]
async fn a_tag_outside_of_lvms_alphabet_is_invalid() {
    let node = Node::start().await;
    let request = CreateLvRequest { tags: vec!["a,b".to_owned()], ..create_request("ssd", "a", GIB) };
    assert_eq!(code(node.create_with(request).await), Code::InvalidArgument);
}

/// LVM keeps the metadata of all volumes of a group in one small area.
#[rstest]
#[case::most(32, 128, None)]
#[case::too_many(33, 1, Some("33 tags: a request may have at most 32"))]
#[case::too_long(32, 129, Some("tags of 4128 characters in total: a request may have at most 4096"))]
#[tokio::test(start_paused = true)]
async fn tags_have_a_number_and_a_length_that_is_the_most(
    #[case] count: usize,
    #[case] length: usize,
    #[case] refusal: Option<&str>,
) {
    let node = Node::start_thin().await;
    let tags: Vec<_> = (10..10 + count).map(|number| format!("{number}{}", "x".repeat(length.max(2) - 2))).collect();
    let tags: Vec<_> = if length == 1 { vec!["t".to_owned(); count] } else { tags };
    node.create("thin", "a", GIB).await.unwrap();
    let create = node.create_with(CreateLvRequest { tags: tags.clone(), ..create_request("thin", "b", GIB) }).await;
    let copy = node.snapshot(CreateLvSnapshotRequest { tags, ..snapshot_request("s") }).await;
    for made in [create, copy] {
        match refusal {
            None => drop(made.unwrap()),
            Some(refusal) => {
                let status = made.unwrap_err();
                assert_eq!((status.code(), status.message()), (Code::InvalidArgument, refusal));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn tags_that_lvmd_relies_on_cannot_be_set_by_clients() {
    let node = Node::start().await;
    let request = CreateLvRequest { tags: vec!["topolvm.io/making=x".to_owned()], ..create_request("ssd", "a", GIB) };
    let status = node.create_with(request).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("it is reserved for lvmd"), "{status}");
}

#[tokio::test(start_paused = true)]
async fn an_empty_tag_is_no_tag() {
    let node = Node::start().await;
    let request = CreateLvRequest { tags: vec![String::new()], ..create_request("ssd", "a", GIB) };
    node.create_with(request).await.unwrap();
    assert_eq!(node.lvm.volume("vg-ssd", "a").unwrap().tags, [MANAGED]);
}

#[tokio::test(start_paused = true)]
async fn unknown_classes_differ_from_missing_volumes() {
    let node = Node::start().await;
    let status = node.create("nvme", "a", GIB).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().starts_with("device-class not found: nvme"), "{status}");
    assert_eq!(code(node.resize("nvme", "a", 1).await), Code::FailedPrecondition);
    assert_eq!(code(node.remove("nvme", "a").await), Code::FailedPrecondition);
    let request = CreateLvRequest { lvcreate_option_class: "fast".to_owned(), ..create_request("ssd", "a", GIB) };
    let status = node.create_with(request).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().starts_with("unsupported lvcreate-option-class target: fast"), "{status}");
}

#[tokio::test(start_paused = true)]
async fn options_that_lvm_does_not_know_are_the_administrators_fault() {
    let node = Node::start().await;
    let request = CreateLvRequest { lvcreate_option_class: "wrong".to_owned(), ..create_request("ssd", "a", GIB) };
    let status = node.create_with(request).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("unrecognized option '--compression'"), "{status}");
    assert!(*node.engine.lvm_works().borrow(), "LVM itself is well");
}

#[tokio::test(start_paused = true)]
async fn growing_gives_the_real_size() {
    let node = Node::start().await;
    node.create("ssd", "a", GIB).await.unwrap();
    let size = node.resize("ssd", "a", (2 * GIB + 1).try_into().unwrap()).await.unwrap();
    assert_eq!(u64::try_from(size).unwrap(), 2 * GIB + EXTENT);
    assert_eq!(node.lvm.volume("vg-ssd", "a").unwrap().bytes(), 2 * GIB + EXTENT);
}

#[rstest]
#[case::smaller(4096)]
#[case::zero(0)]
#[case::the_same(1 << 30)]
#[tokio::test(start_paused = true)]
async fn shrinking_changes_nothing_and_gives_the_size(#[case] bytes: i64) {
    let node = Node::start().await;
    node.create("ssd", "a", GIB).await.unwrap();
    assert_eq!(node.resize("ssd", "a", bytes).await.unwrap(), 1 << 30);
    assert_eq!(node.lvm.count("lvextend"), 0);
}

#[tokio::test(start_paused = true)]
async fn a_negative_size_is_invalid() {
    let node = Node::start().await;
    node.create("ssd", "a", GIB).await.unwrap();
    assert_eq!(code(node.resize("ssd", "a", -1).await), Code::InvalidArgument);
}

#[tokio::test(start_paused = true)]
async fn growing_beyond_the_free_space_names_what_is_missing() {
    let node = Node::start().await;
    node.create("ssd", "a", 8 * GIB).await.unwrap();
    let status = node.resize("ssd", "a", (10 * GIB).try_into().unwrap()).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "no enough space left on VG: free=1073741824, requested=2147483648");
    assert_eq!(node.lvm.count("lvextend"), 0);
}

#[tokio::test(start_paused = true)]
async fn incomplete_volume_group_has_no_capacity_and_refuses_changes() {
    let node = Node::start().await;
    node.create("hdd", "a", GIB).await.unwrap();
    let mut problems = node.engine.storage_problems();
    node.lvm.set_missing_pvs("vg-hdd", 1);
    let said = "1 physical volumes of volume group vg-hdd are missing, so LVM creates no volumes in it; attach the \
                disks, or remove them from the group with `vgreduce --removemissing vg-hdd`";
    assert_eq!(*problems.wait_for(|problems| !problems.is_empty()).await.unwrap(), [said]);
    assert_eq!(node.free("hdd").await.unwrap(), 0);
    let capacity = node.engine.capacity();
    assert_eq!((capacity.classes[1].free_bytes, capacity.classes[1].size), (0, 20 * GIB));
    assert!(capacity.classes[0].free_bytes > 0, "other groups are not affected");
    for status in [node.create("hdd", "b", GIB).await.unwrap_err(), node.resize("hdd", "a", 2 << 30).await.unwrap_err()]
    {
        assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, said));
    }
    assert_eq!(node.create("hdd", "a", GIB).await.unwrap().name, "a", "what is there is there");
    assert_eq!(node.list("hdd").await.unwrap().len(), 1);
    node.remove("hdd", "a").await.unwrap();

    node.lvm.set_missing_pvs("vg-hdd", 0);
    problems.wait_for(Vec::is_empty).await.unwrap();
    assert_eq!(node.free("hdd").await.unwrap(), 20 * GIB);
}

#[tokio::test(start_paused = true)]
async fn thin_pool_in_an_incomplete_volume_group_has_no_capacity() {
    let node = Node::start_thin().await;
    node.create("thin", "a", GIB).await.unwrap();
    node.lvm.set_missing_pvs("vg", 1);
    node.notice().await;
    assert_eq!(node.free("thin").await.unwrap(), 0);
    let class = node.engine.capacity().classes[1].clone();
    assert_eq!((class.group_free_bytes, class.thin.unwrap().size), (0, 4 * GIB));
    assert_eq!(code(node.snapshot(snapshot_request("s")).await), Code::FailedPrecondition);
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_exists_and_is_not_active_is_activated() {
    let node = Node::start().await;
    let made = node.create("ssd", "a", GIB).await.unwrap();
    node.notice().await;
    node.lvm.edit_volume("vg-ssd", "a", |volume| volume.active = false);
    node.notice().await;
    assert_eq!(node.create("ssd", "a", GIB).await.unwrap(), made);
    assert!(node.lvm.volume("vg-ssd", "a").unwrap().active);
    assert!(node.lvm.commands().contains(&"lvchange -a y -K vg-ssd/a".to_owned()));
    assert_eq!(node.lvm.count("lvcreate"), 1);
}

#[tokio::test(start_paused = true)]
async fn volume_that_cannot_be_activated_is_not_returned() {
    let node = Node::start().await;
    node.create("ssd", "a", GIB).await.unwrap();
    node.notice().await;
    node.lvm.edit_volume("vg-ssd", "a", |volume| volume.active = false);
    node.notice().await;
    node.lvm.fail("lvchange", 1, Fault::says("device-mapper: create ioctl failed"));
    assert_eq!(code(node.create("ssd", "a", GIB).await), Code::Internal);
    assert!(node.lvm.volume("vg-ssd", "a").is_some());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_gives_up_leaves_no_unfinished_volume() {
    let node = Node::start().await;
    let mut pause = node.lvm.pause("lvcreate");
    tokio::select! {
        _ = node.create("ssd", "a", GIB) => panic!("it is held back"),
        () = pause.reached() => {}
    }
    pause.resume();
    // The next in turn comes after it, and finds what it made.
    node.create("ssd", "a", GIB).await.unwrap();
    assert_eq!(node.lvm.count("lvcreate"), 1);
}

#[tokio::test(start_paused = true)]
async fn the_process_does_not_end_before_a_change_has() {
    let node = Node::start().await;
    let mut pause = node.lvm.pause("lvcreate");
    tokio::select! {
        _ = node.create("ssd", "a", GIB) => panic!("it is held back"),
        () = pause.reached() => {}
    }
    node.shutdown.cancel();
    let resumed = async {
        assert_eq!(node.lvm.volumes("vg-ssd"), Vec::<String>::new());
        pause.resume();
    };
    let (ended, ()) = tokio::join!(node.tasks.clone().wait(), resumed);
    ended.unwrap();
    assert_eq!(node.lvm.volumes("vg-ssd"), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn growing_a_volume_to_the_size_that_it_has_makes_its_device() {
    let node = Node::start().await;
    node.create("ssd", "a", GIB).await.unwrap();
    node.lvm.edit_volume("vg-ssd", "a", |volume| volume.active = false);
    assert_eq!(node.resize("ssd", "a", 1 << 30).await.unwrap(), 1 << 30);
    assert!(node.lvm.volume("vg-ssd", "a").unwrap().active);
}

/// Volumes of the option class take twice their size, whatever the device class says.
const PLAIN: &str = r"
device-classes: [{name: plain, volume-group: vg-hdd, default: true, spare-gb: 4}]
lvcreate-option-classes: [{name: mirrored, options: [--type=raid1]}]
";

#[rstest]
#[case::class(PLAIN)]
#[case::another_class_has_the_group("device-classes: [{name: other, volume-group: vg-hdd, spare-gb: 4}]")]
#[tokio::test(start_paused = true)]
async fn volume_growth_is_checked_against_its_layout_not_its_class(#[case] config: &str) {
    let node = Node::start().await.restart(PLAIN).await;
    let request = CreateLvRequest { lvcreate_option_class: "mirrored".to_owned(), ..create_request("plain", "a", GIB) };
    node.create_with(request).await.unwrap();
    let node = node.restart(config).await;
    // 20 GiB, of which a copy of 1 GiB and its metadata are on each of two disks, and 4 GiB are kept.
    let free = node.lvm.free("vg-hdd");
    for too_much in [12 << 30, 9 << 30] {
        // The latter fits, and eats the spare.
        assert_eq!(code(node.resize("plain", "a", too_much).await), Code::ResourceExhausted);
    }
    assert_eq!(node.lvm.free("vg-hdd"), free);
    node.resize("plain", "a", 7 << 30).await.unwrap();
    assert_eq!(node.lvm.free("vg-hdd"), free - 12 * GIB);
    assert!(node.lvm.free("vg-hdd") >= 4 * GIB, "the spare is there");
}
