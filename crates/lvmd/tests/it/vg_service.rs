//! Lists of volumes and free space.

use std::time::Duration;

use rstest::rstest;
use tokio::time::sleep;
use tonic::Code;
use topolvm_proto::lvmd::{CreateLvRequest, Empty, OptionClassItem};
use topolvm_testkit::lvm::{EXTENT, FakeVolume, Fault};

use crate::node::{GIB, Node, THIN_CONFIG, code, create_request};

#[tokio::test(start_paused = true)]
async fn volume_list_has_all_properties_of_the_volumes_of_a_class() {
    let node = Node::start().await;
    node.create("hdd", "other", GIB).await.unwrap();
    let volume = FakeVolume { tags: vec!["x".to_owned(), "y=z".to_owned()], ..FakeVolume::thick(GIB) };
    node.lvm.add_volume("vg-ssd", "a", volume);
    node.notice().await;
    let volumes = node.list("ssd").await.unwrap();
    let [volume] = &volumes[..] else { panic!("{volumes:?}") };
    assert_eq!((volume.name.as_str(), volume.size_bytes), ("a", 1 << 30));
    assert_eq!((volume.path.as_str(), volume.attr.as_str()), ("/dev/vg-ssd/a", "-wi-a-----"));
    assert_eq!(volume.tags, ["x", "y=z"]);
    assert_eq!(volume.dev_major, 253);
}

#[tokio::test(start_paused = true)]
async fn query_for_one_volume_omits_the_others() {
    let node = Node::start().await;
    for name in ["a", "b", "c"] {
        node.create("ssd", name, GIB).await.unwrap();
    }
    let all = node.list("ssd").await.unwrap();
    assert_eq!(node.list_only("ssd", "b").await.unwrap(), [all[1].clone()]);
    // That there is none, and that the class is not known, are not the same
    assert_eq!(node.list_only("hdd", "d").await.unwrap(), []);
    assert_eq!(code(node.list_only("nvme", "d").await), Code::FailedPrecondition);
}

#[tokio::test(start_paused = true)]
async fn a_volume_without_tags_has_an_empty_list_of_tags() {
    let node = Node::start().await;
    node.lvm.add_volume("vg-ssd", "a", FakeVolume::thick(GIB));
    node.notice().await;
    assert_eq!(node.list("ssd").await.unwrap()[0].tags, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn an_inactive_volume_has_device_0_0() {
    let node = Node::start().await;
    node.create("hdd", "a", GIB).await.unwrap();
    node.create("ssd", "a", GIB).await.unwrap();
    node.notice().await;
    node.lvm.edit_volume("vg-ssd", "a", |volume| volume.active = false);
    node.notice().await;
    let volume = &node.list("ssd").await.unwrap()[0];
    assert_eq!((volume.dev_major, volume.dev_minor, volume.attr.as_str()), (0, 0, "-wi-------"));
}

#[tokio::test(start_paused = true)]
async fn thin_pools_and_what_is_in_them_belong_to_other_classes() {
    let node = Node::start().await;
    node.create("ssd", "thick", GIB).await.unwrap();
    node.lvm.add_volume("vg-ssd", "pool", FakeVolume::thin_pool(2 * GIB));
    node.lvm.add_volume("vg-ssd", "thin", FakeVolume::thin(GIB, "pool"));
    node.notice().await;
    let names: Vec<_> = node.list("ssd").await.unwrap().into_iter().map(|volume| volume.name).collect();
    assert_eq!(names, ["thick"]);
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_is_listed_as_large_as_its_origin() {
    let node = Node::start().await;
    node.create("ssd", "a", 2 * GIB).await.unwrap();
    node.lvm.add_volume("vg-ssd", "b", FakeVolume::snapshot(GIB, "a"));
    node.notice().await;
    assert_eq!(node.list("ssd").await.unwrap()[1].size_bytes, 2 << 30);
}

#[tokio::test(start_paused = true)]
async fn free_space_is_without_the_spare() {
    let node = Node::start().await;
    assert_eq!(node.free("ssd").await.unwrap(), 9 * GIB);
    assert_eq!(node.free("").await.unwrap(), 9 * GIB);
    assert_eq!(node.free("hdd").await.unwrap(), 20 * GIB);
}

#[tokio::test(start_paused = true)]
async fn free_space_is_never_negative() {
    let node = Node::start().await;
    node.lvm.add_volume("vg-ssd", "a", FakeVolume::thick(10 * GIB));
    node.notice().await;
    assert_eq!(node.free("ssd").await.unwrap(), 0);
}

#[tokio::test(start_paused = true)]
async fn reading_costs_no_process() {
    let node = Node::start().await;
    node.create("ssd", "a", GIB).await.unwrap();
    let before = node.lvm.processes();
    node.list("ssd").await.unwrap();
    node.free("ssd").await.unwrap();
    drop(node.vg.clone().watch(Empty {}).await.unwrap());
    assert_eq!(node.lvm.processes(), before);
}

#[tokio::test(start_paused = true)]
async fn failures_have_their_codes() {
    let node = Node::start().await;
    assert_eq!(code(node.list("nvme").await), Code::FailedPrecondition);
    assert_eq!(code(node.free("nvme").await), Code::FailedPrecondition);
    node.notice().await;
    node.lvm.remove_group("vg-ssd");
    node.notice().await;
    assert_eq!(code(node.list("ssd").await), Code::FailedPrecondition);
    assert_eq!(code(node.free("ssd").await), Code::FailedPrecondition);
}

#[rstest]
#[case::failing(Fault::says("oops"))]
#[case::hanging(Fault::Timeout)]
#[case::garbled(Fault::Garbled)]
#[tokio::test(start_paused = true)]
async fn reads_go_on_with_what_was_known_while_lvm_fails(#[case] fault: Fault) {
    let node = Node::start().await;
    node.create("ssd", "a", GIB).await.unwrap();
    let is_slow = matches!(fault, Fault::Timeout);
    node.lvm.fail_always("fullreport", fault);
    node.lvm.add_volume("vg-ssd", "b", FakeVolume::thick(GIB));
    node.notice().await;
    assert_eq!(*node.engine.lvm_works().borrow(), is_slow);
    assert_eq!(node.list("ssd").await.unwrap().len(), 1);
    assert_eq!(node.free("ssd").await.unwrap(), 8 * GIB);
    assert!(matches!(code(node.create("ssd", "c", GIB).await), Code::Internal | Code::DeadlineExceeded));
    node.lvm.clear_faults();
    sleep(Duration::from_mins(1)).await;
    assert!(*node.engine.lvm_works().borrow());
    assert_eq!(node.list("ssd").await.unwrap().len(), 2);
    assert_eq!(node.free("ssd").await.unwrap(), 7 * GIB);
}

#[tokio::test(start_paused = true)]
async fn reads_do_not_wait_for_an_lvm_that_takes_its_time() {
    let node = Node::start().await;
    let mut pause = node.lvm.pause("fullreport");
    node.lvm.extend_group("vg-ssd", GIB);
    pause.reached().await;
    assert_eq!(node.free("ssd").await.unwrap(), 9 * GIB);
    assert_eq!(node.list("ssd").await.unwrap(), []);
    pause.resume();
    node.notice().await;
    assert_eq!(node.free("ssd").await.unwrap(), 10 * GIB);
}

#[tokio::test(start_paused = true)]
async fn reads_do_not_wait_for_a_change_and_never_show_half_of_it() {
    let node = Node::start().await;
    let mut pause = node.lvm.pause_after("lvcreate");
    let reads = async {
        pause.reached().await;
        assert_eq!(node.list("ssd").await.unwrap(), []);
        assert_eq!(node.free("ssd").await.unwrap(), 9 * GIB);
        pause.resume();
    };
    let (created, ()) = tokio::join!(node.create("ssd", "a", GIB), reads);
    assert_eq!(node.list("ssd").await.unwrap(), [created.unwrap()]);
    assert_eq!(node.free("ssd").await.unwrap(), 8 * GIB);
}

#[tokio::test(start_paused = true)]
async fn free_bytes_of_class_and_volume_group_are_distinguished() {
    let config = "device-classes: [{name: raid, volume-group: vg-hdd, default: true, spare-gb: 4, lvcreate-options: \
         [--type=raid1]}]";
    let node = Node::start().await.restart(config).await;
    let message = node.vg.clone().watch(Empty {}).await.unwrap().into_inner().message().await.unwrap().unwrap();
    // Half of 20 GiB without the spare, less an extent of metadata.
    assert_eq!((message.free_bytes, message.items[0].free_bytes), (8 * GIB - EXTENT, 8 * GIB - EXTENT));
    assert_eq!(message.items[0].volume_group_free_bytes, 16 * GIB);
    assert_eq!(node.free("raid").await.unwrap(), 8 * GIB - EXTENT);
}

#[tokio::test(start_paused = true)]
async fn capacity_stream_has_the_largest_volume_per_lvcreate_layout() {
    let options = "lvcreate-option-classes: [{name: ahead, options: [--readahead=8]}, {name: mirrored, options: \
         [--type=raid1]}, {name: striped, options: [-i2]}]";
    let config =
        format!("device-classes: [{{name: plain, volume-group: vg-hdd, default: true, spare-gb: 4}}]\n{options}");
    let node = Node::start().await.restart(&config).await;
    let processes = node.lvm.processes();
    assert_eq!(
        layouts(&node).await,
        [vec![
            layout("", 16 * GIB, 1, 1),
            layout("mirrored", 8 * GIB - EXTENT, 1, 2),
            layout("striped", 16 * GIB, 2, 2)
        ]]
    );
    assert_eq!(node.lvm.processes(), processes);
    let mirrored = |name, size| CreateLvRequest {
        lvcreate_option_class: "mirrored".to_owned(),
        ..create_request("plain", name, size)
    };
    assert_eq!(code(node.create_with(mirrored("a", 8 * GIB)).await), Code::ResourceExhausted);
    node.create_with(mirrored("a", 8 * GIB - EXTENT)).await.unwrap();
    assert_eq!(
        layouts(&node).await,
        [vec![layout("", 0, 1, 1), layout("mirrored", 0, 1, 2), layout("striped", 0, 2, 2)]]
    );
    // A pool gives all volumes the same
    let node = Node::start_thin().await.restart(&format!("{THIN_CONFIG}{options}")).await;
    let counts: Vec<_> = layouts(&node).await.iter().map(Vec::len).collect();
    assert_eq!(counts, [3, 0, 0]);
}

fn layout(option_class: &str, free_bytes: u64, stripes: u64, images: u64) -> OptionClassItem {
    OptionClassItem { lvcreate_option_class: option_class.to_owned(), free_bytes, stripes, images }
}

/// The option classes of each device class in the first message of Watch.
async fn layouts(node: &Node) -> Vec<Vec<OptionClassItem>> {
    let message = node.vg.clone().watch(Empty {}).await.unwrap().into_inner().message().await.unwrap().unwrap();
    message.items.into_iter().map(|item| item.option_classes).collect()
}
