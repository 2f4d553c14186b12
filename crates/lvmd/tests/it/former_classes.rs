//! Device classes that are added and removed, while lvmd runs and across its restart.

use std::time::Duration;

use lvmd_engine::StartError;
use tokio::time::sleep;
use tonic::Code;
use topolvm_proto::lvmd::Empty;
use topolvm_testkit::lvm::{FakeVolume, Fault};

use crate::node::{CONFIG, GIB, MANAGED, Node, THIN_CONFIG, code, parse};

/// The class `ssd` is called `fast`, and `hdd` is gone.
const OTHER_CONFIG: &str = "device-classes: [{name: fast, volume-group: vg-ssd, default: true, spare-gb: 2}]";

#[tokio::test(start_paused = true)]
async fn new_classes_take_effect_at_once() {
    let node = Node::start().await;
    node.lvm.add_group("vg-new", 5 * GIB, 1);
    let config = "device-classes: [{name: ssd, volume-group: vg-ssd, default: true, spare-gb: 2}, {name: new, \
         volume-group: vg-new, spare-gb: 0}]";
    node.engine.reconfigure(parse(config)).await.unwrap();
    assert_eq!(node.free("ssd").await.unwrap(), 8 * GIB);
    assert_eq!(node.free("new").await.unwrap(), 5 * GIB);
    node.create("new", "a", GIB).await.unwrap();
    assert_eq!(code(node.free("hdd").await), Code::FailedPrecondition);
    // The new group is looked after like the others.
    node.notice().await;
    node.lvm.extend_group("vg-new", GIB);
    node.notice().await;
    assert_eq!(node.free("new").await.unwrap(), 5 * GIB);
}

#[tokio::test(start_paused = true)]
async fn watchers_learn_of_new_classes() {
    let node = Node::start().await;
    let mut stream = node.vg.clone().watch(Empty {}).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();
    node.engine.reconfigure(parse(OTHER_CONFIG)).await.unwrap();
    let message = stream.message().await.unwrap().unwrap();
    assert_eq!(message.free_bytes, 8 * GIB);
    assert_eq!(message.items.iter().map(|item| item.device_class.as_str()).collect::<Vec<_>>(), ["fast"]);
}

#[tokio::test(start_paused = true)]
async fn classes_without_a_volume_group_change_nothing() {
    let node = Node::start().await;
    let config = "device-classes: [{name: ssd, volume-group: vg-ssd, default: true, spare-gb: 2}, {name: new, \
         volume-group: vg-new}]";
    let error = node.engine.reconfigure(parse(config)).await.unwrap_err();
    assert!(matches!(&error, StartError::NoVolumeGroup { class, .. } if class == "new"), "{error}");
    assert_eq!(node.free("ssd").await.unwrap(), 9 * GIB);
    assert_eq!(node.free("hdd").await.unwrap(), 20 * GIB);
}

#[tokio::test(start_paused = true)]
async fn classes_without_a_thin_pool_change_nothing() {
    let node = Node::start_thin().await;
    let config = THIN_CONFIG.replace("pool2", "pool3").replace("spare-gb: 1", "spare-gb: 0");
    let error = node.engine.reconfigure(parse(&config)).await.unwrap_err();
    assert!(matches!(&error, StartError::NoThinPool { class, .. } if class == "other"), "{error}");
    assert_eq!(node.free("thin").await.unwrap(), 5 * GIB);
    assert_eq!(node.free("other").await.unwrap(), 10 * GIB);
}

#[tokio::test(start_paused = true)]
async fn classes_that_lvm_cannot_say_anything_about_change_nothing() {
    let node = Node::start().await;
    node.lvm.add_group("vg-new", 5 * GIB, 1);
    node.lvm.fail("fullreport", 1, Fault::Timeout);
    let error =
        node.engine.reconfigure(parse("device-classes: [{name: new, volume-group: vg-new}]")).await.unwrap_err();
    assert!(matches!(error, StartError::Lvm(_)), "{error}");
    assert_eq!(node.free("ssd").await.unwrap(), 9 * GIB);
}

#[tokio::test(start_paused = true)]
async fn volumes_of_a_class_that_is_gone_can_still_be_removed() {
    let node = Node::start().await;
    for class in ["ssd", "hdd"] {
        node.create(class, class, GIB).await.unwrap();
    }
    node.engine.reconfigure(parse(OTHER_CONFIG)).await.unwrap();
    node.remove("hdd", "hdd").await.unwrap();
    node.remove("ssd", "ssd").await.unwrap();
    assert_eq!(node.lvm.volumes("vg-hdd"), Vec::<String>::new());
    assert_eq!(node.lvm.volumes("vg-ssd"), Vec::<String>::new());
    assert_eq!(node.free("fast").await.unwrap(), 8 * GIB, "the class that has the group now knows at once");
}

#[tokio::test(start_paused = true)]
async fn volume_removal_works_for_a_class_that_was_gone_at_start() {
    let node = Node::start().await;
    node.create("hdd", "a", GIB).await.unwrap();
    let next = node.restart(OTHER_CONFIG).await;
    next.remove("hdd", "a").await.unwrap();
    assert_eq!(next.lvm.volumes("vg-hdd"), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn what_lvmd_did_not_make_is_not_removed_for_an_unknown_class() {
    let node = Node::start().await;
    node.lvm.add_volume("vg-hdd", "a", FakeVolume::thick(GIB));
    let status = node.remove("gone", "a").await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().starts_with("device-class not found: gone"), "{status}");
    assert!(node.lvm.volume("vg-hdd", "a").is_some());
}

#[tokio::test(start_paused = true)]
async fn volume_of_an_unknown_class_is_not_reported_absent() {
    let node = Node::start().await;
    assert_eq!(code(node.remove("gone", "a").await), Code::FailedPrecondition);
    let lost = node.create("hdd", "a", GIB).await.unwrap();
    node.lvm.remove_group("vg-hdd");
    assert_eq!(code(node.remove("gone", &lost.name).await), Code::FailedPrecondition);
}

#[tokio::test(start_paused = true)]
async fn an_lvm_that_fails_proves_nothing_for_an_unknown_class() {
    for command in ["vgs", "fullreport"] {
        let node = Node::start().await;
        node.lvm.add_group("vg-late", 5 * GIB, 1);
        node.lvm.add_volume("vg-late", "a", FakeVolume { tags: vec![MANAGED.to_owned()], ..FakeVolume::thick(GIB) });
        node.lvm.fail_always(command, Fault::says("oops"));
        assert_eq!(code(node.remove("gone", "a").await), Code::Internal, "{command}");
        assert!(node.lvm.volume("vg-late", "a").is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn volume_in_use_or_with_snapshots_stays_for_an_unknown_class() {
    let node = Node::start().await;
    for name in ["a", "b"] {
        node.create("hdd", name, GIB).await.unwrap();
    }
    node.lvm.edit_volume("vg-hdd", "a", |volume| volume.open = true);
    node.lvm.add_volume("vg-hdd", "backup", FakeVolume::snapshot(GIB, "b"));
    for name in ["a", "b"] {
        assert_eq!(code(node.remove("gone", name).await), Code::FailedPrecondition, "{name}");
    }
    assert_eq!(node.lvm.volumes("vg-hdd"), ["a", "b", "backup"]);
}

#[tokio::test(start_paused = true)]
async fn unknown_class_refuses_creation_and_lists_but_allows_resize() {
    let node = Node::start().await;
    let tagged = FakeVolume { tags: vec![MANAGED.to_owned()], ..FakeVolume::thick(GIB) };
    node.lvm.add_volume("vg-hdd", "a", tagged);
    assert_eq!(node.resize("gone", "a", 2 << 30).await.unwrap(), 2 << 30);
    assert_eq!(code(node.resize("gone", "b", 2 << 30).await), Code::FailedPrecondition);
    assert_eq!(code(node.create("gone", "a", GIB).await), Code::FailedPrecondition);
    assert_eq!(code(node.list("gone").await), Code::FailedPrecondition);
}

#[tokio::test(start_paused = true)]
async fn volume_group_monitor_is_not_duplicated_by_class_changes() {
    let node = Node::start().await;
    for _ in 0..3 {
        node.engine.reconfigure(parse(OTHER_CONFIG)).await.unwrap();
        node.engine.reconfigure(parse(CONFIG)).await.unwrap();
    }
    node.notice().await;
    let before = node.lvm.processes();
    sleep(Duration::from_hours(1)).await;
    assert!(node.lvm.processes() - before <= 12);
}
