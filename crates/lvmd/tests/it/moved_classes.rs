//! Device classes that got another volume group or thin pool: their old volumes are found, and never reported as gone.

use rstest::rstest;
use tonic::{Code, Status};
use topolvm_proto::lvmd::{CreateLvSnapshotRequest, GetLvListRequest, LogicalVolume};
use topolvm_testkit::lvm::{FakeVolume, Fault};

use crate::node::{CONFIG, GIB, MANAGED, Node, THIN_CONFIG, code, parse, snapshot_request};

/// As topolvm-node names volumes.
const UID: &str = "0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a";
/// Another one.
const COPY: &str = "1c6b3a5f-9e65-4a6d-8b1f-8e9f7a4d3c2b";
/// `ssd`, the default class, has its volumes in the other group now, and `hdd` is gone.
const MOVED: &str = "device-classes: [{name: ssd, volume-group: vg-hdd, default: true, spare-gb: 0}]";
/// Of the thin configuration the class `other` alone.
const ONLY_OTHER: &str = r"
device-classes:
  - {name: other, volume-group: vg, spare-gb: 0, type: thin, thin-pool: {name: pool2, overprovision-ratio: 10}}
";
/// The default class is another one.
const OTHER_DEFAULT: &str = "device-classes: [{name: ssd, volume-group: vg-ssd, spare-gb: 1}, {name: hdd, \
                             volume-group: vg-hdd, default: true, spare-gb: 0}]";

async fn look_up(node: &Node, class: &str, name: &str) -> Result<Option<LogicalVolume>, Status> {
    let request = GetLvListRequest { device_class: class.to_owned(), name: name.to_owned() };
    Ok(node.vg.clone().get_lv_list(request).await?.into_inner().volumes.pop())
}

/// A volume that is ready, and what the configuration says later.
async fn moved(class: &str, config: &str, restarts: bool) -> Node {
    let node = Node::start().await;
    node.create(class, UID, GIB).await.unwrap();
    if restarts {
        return node.restart(config).await;
    }
    node.engine.reconfigure(parse(config)).await.unwrap();
    node
}

#[rstest]
#[case::class_with_another_group("ssd", MOVED)]
#[case::another_default_class("", OTHER_DEFAULT)]
#[tokio::test(start_paused = true)]
async fn a_volume_is_served_where_it_was_made(
    #[case] class: &str,
    #[case] config: &str,
    #[values(false, true)] restarts: bool,
) {
    let node = moved(class, config, restarts).await;
    let found = look_up(&node, class, UID).await.unwrap().unwrap();
    assert_eq!(found.path, format!("/dev/vg-ssd/{UID}"));
    assert_eq!(node.resize(class, UID, 2 << 30).await.unwrap(), 2 << 30);
    node.remove(class, UID).await.unwrap();
    assert_eq!(node.lvm.volumes("vg-ssd"), Vec::<String>::new());
    assert_eq!(code(node.remove(class, UID).await), Code::NotFound);
    assert_eq!(look_up(&node, class, UID).await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn a_volume_in_a_group_that_no_class_names_is_found() {
    let node = Node::start().await;
    node.create("ssd", UID, GIB).await.unwrap();
    let next = node.restart("device-classes: [{name: ssd, volume-group: vg-hdd, spare-gb: 0}]").await;
    // LVM need not be asked about a group with volumes of lvmd's.
    let before = next.lvm.processes();
    assert!(look_up(&next, "ssd", UID).await.unwrap().is_some());
    assert_eq!(next.lvm.processes(), before);
    next.remove("ssd", UID).await.unwrap();
    assert_eq!(next.lvm.volumes("vg-ssd"), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_group_that_came_later_is_searched_too() {
    let node = Node::start().await;
    node.lvm.add_group("vg-late", 5 * GIB, 1);
    let volume = || FakeVolume { tags: vec![MANAGED.to_owned()], ..FakeVolume::thick(GIB) };
    node.lvm.add_volume("vg-late", UID, volume());
    assert!(look_up(&node, "gone", UID).await.unwrap().is_some());
    node.remove("ssd", UID).await.unwrap();
    assert_eq!(node.lvm.volumes("vg-late"), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn removed_class_keeps_its_volumes_usable_and_creates_none() {
    let node = Node::start_thin().await;
    node.create("thin", "a", GIB).await.unwrap();
    node.create("thick", "b", GIB).await.unwrap();
    let next = node.restart(ONLY_OTHER).await;
    for (class, name) in [("thin", "a"), ("thick", "b")] {
        assert_eq!(look_up(&next, class, name).await.unwrap().unwrap().name, name);
        assert_eq!(next.resize(class, name, 2 << 30).await.unwrap(), 2 << 30);
        assert_eq!(code(next.create(class, "new", GIB).await), Code::FailedPrecondition, "{class}");
    }
    assert_eq!(next.snapshot(snapshot_request("s")).await.unwrap().size_bytes, 2 << 30);
    assert_eq!(next.lvm.volume("vg", "s").unwrap().pool.as_deref(), Some("pool"));
    // The pool has 4 GiB, and no configuration allows overprovisioning.
    assert_eq!(code(next.resize("thin", "a", 7 << 30).await), Code::ResourceExhausted);
    for (class, name) in [("thin", "a"), ("thin", "s"), ("thick", "b")] {
        next.remove(class, name).await.unwrap();
    }
    assert_eq!(next.lvm.volumes("vg"), ["pool", "pool2"]);
}

#[tokio::test(start_paused = true)]
async fn class_moved_to_another_pool_still_finds_its_volumes() {
    let node = Node::start_thin().await;
    node.create("thin", UID, GIB).await.unwrap();
    let swapped = THIN_CONFIG
        .replace("name: thin", "name: x")
        .replace("name: other", "name: thin")
        .replace("default: true, ", "");
    node.engine.reconfigure(parse(&swapped)).await.unwrap();
    let request = CreateLvSnapshotRequest { source_volume: UID.to_owned(), ..snapshot_request(COPY) };
    node.snapshot(request).await.unwrap();
    assert_eq!(node.lvm.volume("vg", COPY).unwrap().pool.as_deref(), Some("pool"));
    for name in [COPY, UID] {
        node.remove("thin", name).await.unwrap();
    }
    assert_eq!(node.lvm.volumes("vg"), ["pool", "pool2"]);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_cannot_be_read_proves_nothing() {
    let node = moved("ssd", MOVED, false).await;
    node.lvm.hide_metadata("vg-ssd", true);
    node.lvm.fail_always("fullreport", Fault::Timeout);
    assert_eq!(code(node.remove("ssd", "other").await), Code::DeadlineExceeded);
    node.lvm.clear_faults();
    node.lvm.fail_always("vgs", Fault::says("oops"));
    assert_eq!(code(node.remove("ssd", "other").await), Code::Internal);
    node.lvm.clear_faults();
    assert_eq!(code(node.remove("ssd", "other").await), Code::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_went_with_the_volume_proves_nothing() {
    let node = moved("ssd", MOVED, false).await;
    node.lvm.remove_group("vg-ssd");
    node.notice().await;
    assert_eq!(code(node.remove("ssd", UID).await), Code::FailedPrecondition);
    assert_eq!(code(look_up(&node, "ssd", UID).await), Code::FailedPrecondition);
    assert_eq!(code(node.remove("ssd", "never-there").await), Code::NotFound, "it was not in that group");
}

#[tokio::test(start_paused = true)]
async fn former_group_that_is_away_at_the_start_proves_nothing() {
    let node = moved("ssd", MOVED, false).await;
    node.notice().await;
    node.lvm.unplug_group("vg-ssd");
    let node = node.restart(MOVED).await;
    let status = node.remove("ssd", UID).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("volume group vg-ssd not found"), "{status}");
    assert!(status.message().contains("`vgchange --deltag topolvm.io/former-group=vg-ssd:"), "{status}");
    // Other volumes are made and removed meanwhile
    node.create("ssd", COPY, GIB).await.unwrap();
    node.remove("ssd", COPY).await.unwrap();

    node.lvm.plug_group("vg-ssd");
    node.remove("ssd", UID).await.unwrap();
    assert_eq!(node.lvm.volumes("vg-ssd"), Vec::<String>::new());
    node.notice().await;
    assert_eq!(node.lvm.group_tags("vg-hdd"), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn former_group_without_volumes_is_no_longer_named() {
    let node = moved("ssd", MOVED, true).await;
    node.notice().await;
    assert_eq!(node.lvm.group_tags("vg-hdd").len(), 1);
    node.shutdown.cancel();
    node.lvm.remove_volume("vg-ssd", UID);
    let node = node.restart(MOVED).await;
    node.notice().await;
    assert_eq!(node.lvm.group_tags("vg-hdd"), Vec::<String>::new());
    node.lvm.remove_group("vg-ssd");
    assert_eq!(code(node.remove("ssd", UID).await), Code::NotFound);
}

#[tokio::test(start_paused = true)]
async fn what_topolvm_made_is_known_by_its_name() {
    let node = Node::start().await;
    node.lvm.add_volume("vg-ssd", UID, FakeVolume::thick(GIB));
    node.lvm.add_volume("vg-ssd", "theirs", FakeVolume::thick(GIB));
    node.notice().await;
    node.engine.reconfigure(parse(OTHER_DEFAULT)).await.unwrap();
    assert!(look_up(&node, "", UID).await.unwrap().is_some());
    node.remove("", UID).await.unwrap();
    assert_eq!(code(node.remove("", "theirs").await), Code::NotFound);
    assert_eq!(node.lvm.volumes("vg-ssd"), ["theirs"]);
}

#[tokio::test(start_paused = true)]
async fn untagged_volume_outside_of_classes_is_kept_and_reported() {
    let node = Node::start().await;
    node.lvm.add_group("vg-other", 5 * GIB, 1);
    node.lvm.add_volume("vg-other", UID, FakeVolume::thick(GIB));
    let status = node.remove("ssd", UID).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    let remedy = format!("`lvchange --addtag topolvm.io/managed-by=lvmd vg-other/{UID}`");
    assert!(status.message().contains(&remedy), "{status}");
    assert!(node.lvm.volume("vg-other", UID).is_some());
    node.lvm.edit_volume("vg-other", UID, |volume| volume.tags.push(MANAGED.to_owned()));
    node.remove("ssd", UID).await.unwrap();
    assert_eq!(node.lvm.volumes("vg-other"), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn of_two_copies_none_is_removed() {
    let node = Node::start().await;
    for vg in ["vg-hdd", "vg-copy"] {
        if vg == "vg-copy" {
            node.lvm.add_group(vg, 5 * GIB, 1);
        }
        node.lvm.add_volume(vg, UID, FakeVolume { tags: vec![MANAGED.to_owned()], ..FakeVolume::thick(GIB) });
    }
    let config = "device-classes: [{name: ssd, volume-group: vg-ssd, default: true, spare-gb: 1}]";
    let next = node.restart(config).await;
    let status = next.remove("ssd", UID).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("vg-copy, vg-hdd"), "{status}");
}

#[rstest]
#[case::class_gone("device-classes: [{name: hdd, volume-group: vg-hdd, spare-gb: 0}]")]
#[case::class_moved("device-classes: [{name: ssd, volume-group: vg-hdd, spare-gb: 0}]")]
#[case::another_class_took_the_place("device-classes: [{name: hdd, volume-group: vg-ssd, spare-gb: 0}]")]
#[tokio::test(start_paused = true)]
async fn a_volume_of_a_class_that_wiped_is_wiped(#[case] config: &str, #[values(false, true)] restarts: bool) {
    let node = Node::start().await;
    let wiping = CONFIG.replace("{name: ssd,", "{name: ssd, wipe: zero,");
    node.engine.reconfigure(parse(&wiping)).await.unwrap();
    node.create("ssd", UID, GIB).await.unwrap();
    let node = if restarts {
        node.restart(config).await
    } else {
        node.engine.reconfigure(parse(config)).await.unwrap();
        node
    };
    node.remove("ssd", UID).await.unwrap();
    while !node.lvm.volumes("vg-ssd").is_empty() {
        node.notice().await;
    }
    assert_eq!(node.lvm.removed_unwiped("vg-ssd"), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn volume_of_a_moved_class_is_not_created_a_second_time() {
    let node = moved("ssd", MOVED, false).await;
    let status = node.create("ssd", UID, GIB).await.unwrap_err();
    assert_eq!(status.code(), Code::AlreadyExists);
    assert_eq!(node.lvm.volumes("vg-hdd"), Vec::<String>::new());
    // What the agent does next.
    node.remove("ssd", UID).await.unwrap();
    node.create("ssd", UID, GIB).await.unwrap();
    assert_eq!(node.lvm.volumes("vg-hdd"), [UID]);
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_where_it_belongs_costs_no_search() {
    let node = Node::start().await;
    node.create("ssd", UID, GIB).await.unwrap();
    let before = node.lvm.processes();
    look_up(&node, "ssd", UID).await.unwrap().unwrap();
    node.resize("ssd", UID, 1 << 30).await.unwrap();
    assert_eq!(node.lvm.processes(), before);
    node.remove("ssd", UID).await.unwrap();
    assert_eq!((node.lvm.processes(), node.lvm.count("vgs")), (before + 1, 1), "vgs ran at the start");
}
