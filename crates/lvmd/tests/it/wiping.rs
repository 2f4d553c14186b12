//! Wiping of removed volumes before their extents are given to others.

use std::time::Duration;

use lvm::Wipe;
use lvmd::EngineMetrics;
use prometheus_client::registry::Registry;
use rstest::rstest;
use tokio::time::{sleep, timeout};
use tonic::Code;
use topolvm_proto::lvmd::Empty;
use topolvm_testkit::lvm::{FakeLvm, FakeVolume, Fault};

use crate::node::{GIB, MANAGED, MIB, Node, code, parse, snapshot_request};

/// Like the usual ones; `ssd` is zeroed, `hdd` discarded.
const CONFIG: &str = r"
device-classes:
  - {name: ssd, volume-group: vg-ssd, default: true, spare-gb: 1, wipe: zero}
  - {name: hdd, volume-group: vg-hdd, spare-gb: 0, wipe: discard}
";
const ONLY_HDD: &str = "device-classes: [{name: hdd, volume-group: vg-hdd, spare-gb: 0, default: true}]";
const WIPING: &str = "topolvm.io/wiping=zero:/run/topolvm/lvmd.sock";
const WIPED_BY_ANOTHER: &str = "topolvm.io/wiping=zero:/run/other/lvmd.sock";

async fn start() -> Node {
    let lvm = FakeLvm::new().with_group("vg-ssd", 10 * GIB);
    lvm.add_group("vg-hdd", 20 * GIB, 2);
    Node::start_with(lvm, CONFIG).await
}

/// Waits until nothing is left in the group, and all watchers know.
async fn all_wiped(node: &Node, vg: &str) {
    let mut watch = node.vg.clone().watch(Empty {}).await.unwrap().into_inner();
    while !node.lvm.volumes(vg).is_empty() {
        timeout(Duration::from_hours(1), watch.message()).await.expect("it stays").unwrap().unwrap();
    }
}

/// The only volume of the group.
fn only(node: &Node, vg: &str) -> (String, FakeVolume) {
    let [name] = &node.lvm.volumes(vg)[..] else { panic!("{:?}", node.lvm.volumes(vg)) };
    (name.clone(), node.lvm.volume(vg, name).unwrap())
}

#[tokio::test(start_paused = true)]
async fn volume_that_is_not_to_be_wiped_is_removed_at_once() {
    let node = Node::start().await;
    node.create("ssd", "a", GIB).await.unwrap();
    node.remove("ssd", "a").await.unwrap();
    assert_eq!(node.lvm.volumes("vg-ssd"), Vec::<String>::new());
    assert_eq!(node.lvm.removed_unwiped("vg-ssd"), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn volume_removal_returns_after_tagging_and_before_wiping() {
    let node = start().await;
    node.create("ssd", "a", GIB).await.unwrap();
    let stop = node.lvm.stop_wiping_at(512 * MIB);
    let before = node.lvm.processes();
    node.remove("ssd", "a").await.unwrap();
    assert_eq!(node.lvm.processes(), before + 1);
    let (name, volume) = only(&node, "vg-ssd");
    assert_eq!(name, format!("topolvm.wiping.{}", volume.uuid));
    assert_eq!(volume.tags, [MANAGED, "topolvm.io/wipe=zero", WIPING]);
    stop.resume();
}

#[rstest]
#[case("ssd", "vg-ssd", Wipe::Zero)]
#[case("hdd", "vg-hdd", Wipe::Discard)]
#[tokio::test(start_paused = true)]
async fn the_whole_volume_is_wiped_as_its_class_says_and_then_removed(
    #[case] class: &str,
    #[case] vg: &str,
    #[case] how: Wipe,
) {
    let node = start().await;
    node.create(class, "a", GIB + 4 * MIB).await.unwrap();
    let stop = node.lvm.stop_wiping_at(GIB);
    node.remove(class, "a").await.unwrap();
    stop.reached().await;
    assert_eq!(only(&node, vg).1.wiped_by, Some(how));
    stop.resume();
    all_wiped(&node, vg).await;
    assert_eq!(node.lvm.removed_unwiped(vg), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn volume_being_wiped_is_not_listed_and_its_space_stays_used() {
    let node = start().await;
    let all = node.free("ssd").await.unwrap();
    node.create("ssd", "a", 4 * GIB).await.unwrap();
    let stop = node.lvm.stop_wiping_at(GIB);
    node.remove("ssd", "a").await.unwrap();
    stop.reached().await;
    assert_eq!(node.list("ssd").await.unwrap(), []);
    assert_eq!(node.free("ssd").await.unwrap(), all - 4 * GIB);
    assert_eq!(code(node.create("ssd", "b", 6 * GIB).await), Code::ResourceExhausted);
    assert_eq!(code(node.remove("ssd", "a").await), Code::NotFound);
    let mut watch = node.vg.clone().watch(Empty {}).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().free_bytes, all - 4 * GIB);
    stop.resume();
    assert_eq!(watch.message().await.unwrap().unwrap().free_bytes, all);
    node.create("ssd", "b", 6 * GIB).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_name_can_be_used_again_at_once() {
    let node = start().await;
    node.create("ssd", "a", GIB).await.unwrap();
    let stop = node.lvm.stop_wiping_at(0);
    node.remove("ssd", "a").await.unwrap();
    node.create("ssd", "a", 2 * GIB).await.unwrap();
    node.remove("ssd", "a").await.unwrap();
    node.create("ssd", "a", GIB).await.unwrap();
    stop.resume();
    let mut watch = node.vg.clone().watch(Empty {}).await.unwrap().into_inner();
    while node.lvm.volumes("vg-ssd") != ["a"] {
        watch.message().await.unwrap().unwrap();
    }
    assert_eq!(node.lvm.removed_unwiped("vg-ssd"), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn one_volume_of_a_group_is_wiped_at_a_time() {
    let node = start().await;
    let stop = node.lvm.stop_wiping_at(32 * MIB);
    for name in ["a", "b", "c"] {
        node.create("ssd", name, GIB).await.unwrap();
        node.remove("ssd", name).await.unwrap();
    }
    stop.reached().await;
    let held = |name: &String| node.lvm.volume("vg-ssd", name).unwrap().held;
    assert_eq!(node.lvm.volumes("vg-ssd").iter().filter(|name| held(name)).count(), 1);
    stop.resume();
    all_wiped(&node, "vg-ssd").await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_open_is_not_removed() {
    let node = start().await;
    node.create("ssd", "a", GIB).await.unwrap();
    node.lvm.edit_volume("vg-ssd", "a", |volume| volume.open = true);
    let status = node.remove("ssd", "a").await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().starts_with("logical volume vg-ssd/a is in use"), "{status}");
    assert_eq!(node.lvm.volume("vg-ssd", "a").unwrap().tags, [MANAGED, "topolvm.io/wipe=zero"]);
}

#[tokio::test(start_paused = true)]
async fn a_copy_on_write_snapshot_is_not_taken_for_wiped() {
    let node = start().await;
    node.create("ssd", "a", GIB).await.unwrap();
    node.lvm.add_volume("vg-ssd", "backup", FakeVolume::snapshot(GIB, "a"));
    assert_eq!(code(node.remove("ssd", "backup").await), Code::FailedPrecondition);
    assert_eq!(code(node.remove("ssd", "a").await), Code::FailedPrecondition);
    assert_eq!(node.lvm.volumes("vg-ssd"), ["a", "backup"]);
}

#[tokio::test(start_paused = true)]
async fn wiping_is_restarted_and_finished_by_the_next_lvmd() {
    let node = start().await;
    node.create("ssd", "a", GIB).await.unwrap();
    let stop = node.lvm.stop_wiping_at(512 * MIB);
    node.remove("ssd", "a").await.unwrap();
    stop.reached().await;
    node.shutdown.cancel();
    stop.resume();
    let next = node.restart(CONFIG).await;
    all_wiped(&next, "vg-ssd").await;
    assert_eq!(next.lvm.removed_unwiped("vg-ssd"), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn wiping_continues_after_a_restart_without_its_device_class() {
    let node = start().await;
    node.create("ssd", "a", GIB).await.unwrap();
    let stop = node.lvm.stop_wiping_at(512 * MIB);
    node.remove("ssd", "a").await.unwrap();
    stop.reached().await;
    node.shutdown.cancel();
    stop.resume();
    let next = node.restart(ONLY_HDD).await;
    while !next.lvm.volumes("vg-ssd").is_empty() {
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(next.lvm.removed_unwiped("vg-ssd"), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn wiping_continues_after_a_reload_without_its_device_class() {
    let node = start().await;
    node.create("ssd", "a", GIB).await.unwrap();
    let stop = node.lvm.stop_wiping_at(512 * MIB);
    node.remove("ssd", "a").await.unwrap();
    stop.reached().await;
    node.engine.reconfigure(parse(ONLY_HDD)).await.unwrap();
    stop.resume();
    while !node.lvm.volumes("vg-ssd").is_empty() {
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(node.lvm.removed_unwiped("vg-ssd"), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn wiping_uses_the_settings_of_the_renamed_device_class() {
    let node = start().await;
    node.create("ssd", "a", GIB).await.unwrap();
    let next = node.restart(&CONFIG.replace("name: ssd", "name: fast")).await;
    next.remove("ssd", "a").await.unwrap();
    all_wiped(&next, "vg-ssd").await;
    assert_eq!(next.lvm.removed_unwiped("vg-ssd"), Vec::<String>::new());
}

/// It returns an error, the next lvmd finds the tag, and the volume is not listed under its old name.
#[tokio::test(start_paused = true)]
async fn a_crash_between_tag_and_rename_leaves_a_volume_that_is_wiped() {
    let node = start().await;
    let tags = vec![MANAGED.to_owned(), WIPING.to_owned()];
    node.lvm.add_volume("vg-ssd", "a", FakeVolume { tags, broken_at: Some(0), ..FakeVolume::thick(GIB) });
    node.notice().await;
    assert_eq!(node.list("ssd").await.unwrap(), []);
    assert_eq!(code(node.resize("ssd", "a", 2 << 30).await), Code::FailedPrecondition);
    node.create("ssd", "a", 2 * GIB).await.unwrap();
    node.remove("ssd", "a").await.unwrap();
    for name in node.lvm.volumes("vg-ssd") {
        node.lvm.edit_volume("vg-ssd", &name, |volume| volume.broken_at = None);
    }
    all_wiped(&node, "vg-ssd").await;
    assert_eq!(node.lvm.removed_unwiped("vg-ssd"), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn removing_again_what_has_the_tag_and_not_the_name_is_success() {
    let node = start().await;
    let tags = vec![MANAGED.to_owned(), WIPING.to_owned()];
    node.lvm.add_volume("vg-ssd", "a", FakeVolume { tags, broken_at: Some(0), ..FakeVolume::thick(GIB) });
    node.remove("ssd", "a").await.unwrap();
    assert_eq!(code(node.remove("ssd", "a").await), Code::NotFound);
    assert!(only(&node, "vg-ssd").0.starts_with("topolvm.wiping."));
}

#[tokio::test(start_paused = true)]
async fn wiping_proceeds_after_the_rename_if_the_tag_fails() {
    let node = start().await;
    node.create("ssd", "a", GIB).await.unwrap();
    // LVM's shell goes on with the rename.
    node.lvm.fail("lvchange", 1, Fault::says("Failed to write VG vg-ssd."));
    assert_eq!(code(node.remove("ssd", "a").await), Code::Internal);
    assert_eq!(node.list("ssd").await.unwrap(), []);
    assert_eq!(code(node.remove("ssd", "a").await), Code::NotFound);
    all_wiped(&node, "vg-ssd").await;
    assert_eq!(node.lvm.removed_unwiped("vg-ssd"), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn removal_with_a_failed_rename_is_an_error_and_retry_succeeds() {
    let node = start().await;
    node.create("ssd", "a", GIB).await.unwrap();
    let stop = node.lvm.stop_wiping_at(0);
    node.lvm.fail("lvrename", 1, Fault::says("Failed to write VG vg-ssd."));
    assert_eq!(code(node.remove("ssd", "a").await), Code::Internal);
    node.remove("ssd", "a").await.unwrap();
    stop.resume();
    all_wiped(&node, "vg-ssd").await;
}

#[tokio::test(start_paused = true)]
async fn wiping_failure_keeps_the_space_and_is_retried() {
    let node = start().await;
    node.create("ssd", "a", GIB).await.unwrap();
    node.lvm.edit_volume("vg-ssd", "a", |volume| volume.broken_at = Some(100 * MIB));
    let free = node.free("ssd").await.unwrap();
    let mut problems = node.engine.storage_problems();
    node.remove("ssd", "a").await.unwrap();
    problems.wait_for(|problems| !problems.is_empty()).await.unwrap();
    let (name, _) = only(&node, "vg-ssd");
    let expected = format!("vg-ssd/{name} cannot be wiped: cannot wipe it at byte 100663296: Input/output error");
    assert_eq!(*problems.borrow(), [expected]);
    sleep(Duration::from_hours(1)).await;
    assert_eq!(node.free("ssd").await.unwrap(), free);
    assert!(*node.engine.lvm_works().borrow(), "other volumes are not affected");

    node.lvm.edit_volume("vg-ssd", &name, |volume| volume.broken_at = None);
    all_wiped(&node, "vg-ssd").await;
    assert_eq!(*problems.wait_for(Vec::is_empty).await.unwrap(), Vec::<String>::new());
    assert_eq!(node.lvm.removed_unwiped("vg-ssd"), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn one_that_fails_does_not_hold_up_the_others() {
    let node = start().await;
    for name in ["a", "b"] {
        node.create("ssd", name, GIB).await.unwrap();
    }
    node.lvm.edit_volume("vg-ssd", "a", |volume| volume.broken_at = Some(0));
    node.remove("ssd", "a").await.unwrap();
    node.remove("ssd", "b").await.unwrap();
    while node.lvm.volumes("vg-ssd").len() > 1 {
        sleep(Duration::from_secs(1)).await;
    }
    assert_eq!(only(&node, "vg-ssd").1.broken_at, Some(0));
}

#[tokio::test(start_paused = true)]
async fn volume_opened_after_its_removal_waits() {
    let node = start().await;
    let tags = vec![MANAGED.to_owned(), WIPING.to_owned()];
    node.lvm.add_volume("vg-ssd", "x", FakeVolume { tags, open: true, ..FakeVolume::thick(GIB) });
    sleep(Duration::from_mins(1)).await;
    assert_eq!(node.lvm.volume("vg-ssd", "x").unwrap().wiped, 0);
    node.lvm.edit_volume("vg-ssd", "x", |volume| volume.open = false);
    all_wiped(&node, "vg-ssd").await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_not_active_after_a_reboot_gets_a_device() {
    let node = start().await;
    let tags = vec![MANAGED.to_owned(), WIPING.to_owned()];
    node.lvm.add_volume("vg-ssd", "x", FakeVolume { tags, active: false, ..FakeVolume::thick(GIB) });
    all_wiped(&node, "vg-ssd").await;
    assert_eq!(node.lvm.removed_unwiped("vg-ssd"), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn what_another_lvmd_wipes_is_left_to_it_for_twenty_minutes() {
    let node = start().await;
    let tags = vec![MANAGED.to_owned(), WIPED_BY_ANOTHER.to_owned()];
    node.lvm.add_volume("vg-ssd", "x", FakeVolume { tags, ..FakeVolume::thick(GIB) });
    sleep(Duration::from_mins(20)).await;
    assert_eq!(node.lvm.volume("vg-ssd", "x").unwrap().wiped, 0);
    assert_eq!(node.list("ssd").await.unwrap(), []);
    all_wiped(&node, "vg-ssd").await;
    assert_eq!(node.lvm.removed_unwiped("vg-ssd"), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn what_another_lvmd_is_still_wiping_is_not_taken_over() {
    let node = start().await;
    let tags = vec![MANAGED.to_owned(), WIPED_BY_ANOTHER.to_owned()];
    node.lvm.add_volume("vg-ssd", "x", FakeVolume { tags, held: true, ..FakeVolume::thick(GIB) });
    sleep(Duration::from_hours(2)).await;
    assert_eq!(node.lvm.volume("vg-ssd", "x").unwrap().wiped, 0);
    assert_eq!(*node.engine.storage_problems().borrow(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_volume_with_the_tag_that_lvmd_did_not_make_is_left_alone() {
    let node = start().await;
    node.lvm.add_volume("vg-ssd", "x", FakeVolume { tags: vec![WIPING.to_owned()], ..FakeVolume::thick(GIB) });
    sleep(Duration::from_hours(1)).await;
    assert_eq!(node.lvm.volume("vg-ssd", "x").unwrap().wiped, 0);
    assert_eq!(node.list("ssd").await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn wiping_names_are_refused_in_requests() {
    let node = start().await;
    let name = "topolvm.wiping.x";
    assert_eq!(code(node.create("ssd", name, GIB).await), Code::InvalidArgument);
    assert_eq!(code(node.remove("ssd", name).await), Code::InvalidArgument);
    assert_eq!(code(node.resize("ssd", name, 1 << 30).await), Code::InvalidArgument);
}

/// The values of the metrics with these labels.
fn metrics(node: &Node, labels: &str) -> [String; 3] {
    let mut registry = Registry::default();
    EngineMetrics::register(&mut registry).show(&node.engine);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    ["wiping_volumes", "wiping_bytes", "wipe_failures_total"].map(|name| {
        let line = format!("topolvm_lvmd_{name}{{{labels}}} ");
        let value = text.lines().find_map(|found| found.strip_prefix(&line));
        value.unwrap_or_else(|| panic!("no {line} in {text}")).to_owned()
    })
}

#[tokio::test(start_paused = true)]
async fn metrics_show_what_is_left_to_wipe() {
    let node = start().await;
    let labels = r#"volume_group="vg-ssd",device_class="ssd""#;
    assert_eq!(metrics(&node, labels), ["0.0", "0.0", "0"]);
    for name in ["a", "b"] {
        node.create("ssd", name, GIB).await.unwrap();
    }
    let stop = node.lvm.stop_wiping_at(256 * MIB);
    node.remove("ssd", "a").await.unwrap();
    stop.reached().await;
    node.remove("ssd", "b").await.unwrap();
    let left = (2 * GIB - 256 * MIB).to_string();
    assert_eq!(metrics(&node, labels), ["2.0", &format!("{left}.0"), "0"]);
    for name in node.lvm.volumes("vg-ssd") {
        node.lvm.edit_volume("vg-ssd", &name, |volume| volume.broken_at = Some(GIB - 1));
    }
    stop.resume();
    node.engine.storage_problems().wait_for(|problems| problems.len() == 2).await.unwrap();
    assert_eq!(metrics(&node, labels), ["2.0", &format!("{}.0", 2 * GIB), "2"]);
}

/// A pool of 4 GiB with this `lv_attr`, and a class that is wiped in this way.
fn thin(attr: &str, wipe: &str) -> (FakeLvm, String) {
    let lvm = FakeLvm::new().with_group("vg", 20 * GIB);
    lvm.add_volume("vg", "pool", FakeVolume { attr: attr.to_owned(), ..FakeVolume::thin_pool(4 * GIB) });
    let class = "name: thin, volume-group: vg, default: true, spare-gb: 0, type: thin";
    let pool = "thin-pool: {name: pool, overprovision-ratio: 2}";
    (lvm, format!("device-classes: [{{{class}, {pool}, wipe: {wipe}}}]"))
}

#[rstest]
#[case("twi-aotz--", "zero")]
#[case("twi-aot---", "discard")]
#[tokio::test(start_paused = true)]
async fn thin_volume_is_removed_without_wiping(#[case] attr: &str, #[case] wipe: &str) {
    let (lvm, config) = thin(attr, wipe);
    let node = Node::start_with(lvm, &config).await;
    node.create("thin", "a", GIB).await.unwrap();
    node.snapshot(snapshot_request("s")).await.unwrap();
    node.remove("thin", "a").await.unwrap();
    node.remove("thin", "s").await.unwrap();
    assert_eq!(node.lvm.volumes("vg"), ["pool"]);
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_stops_zeroing_stops_everything_that_would_leak() {
    let (lvm, config) = thin("twi-aotz--", "zero");
    let node = Node::start_with(lvm, &config).await;
    node.create("thin", "a", GIB).await.unwrap();
    node.lvm.edit_volume("vg", "pool", |pool| "twi-aot---".clone_into(&mut pool.attr));
    node.lvm.extend_group("vg", GIB);
    node.notice().await;
    let remedy = "thin pool vg/pool does not zero new blocks, but wipe is zero; run `lvchange --zero y vg/pool`";
    assert_eq!(*node.engine.storage_problems().borrow(), [remedy]);
    let status = node.create("thin", "b", GIB).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, remedy));
    assert_eq!(code(node.snapshot(snapshot_request("s")).await), Code::FailedPrecondition);
    assert_eq!(code(node.remove("thin", "a").await), Code::FailedPrecondition);
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_does_not_zero_is_refused_as_configuration() {
    let (lvm, config) = thin("twi-aot---", "zero");
    let node = Node::start_with(lvm, &config.replace("zero", "none")).await;
    let error = node.engine.reconfigure(parse(&config)).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "device class \"thin\": wipe is zero, but thin pool vg/pool gives out blocks as they are; run `lvchange --zero \
         y vg/pool` or take wipe out of the configuration"
    );
}
