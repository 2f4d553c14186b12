//! The stream of the storage report: volume groups, physical volumes, device classes, thin pools, and what is wrong.

use std::time::Duration;

use tokio::time::timeout;
use tonic::Streaming;
use topolvm_proto::lvmd::{
    DeviceClassItem, Empty, PhysicalVolumeItem, ThinPoolStatus, VolumeGroupItem, WatchStorageResponse,
};
use topolvm_testkit::lvm::{EXTENT, FakeLvm, FakeVolume, Fault};

use crate::node::{CONFIG, GIB, MANAGED, Node, THIN_CONFIG};

const MINUTE: Duration = Duration::from_mins(1);

async fn watch(node: &Node) -> Streaming<WatchStorageResponse> {
    node.storage.clone().watch(Empty {}).await.unwrap().into_inner()
}

/// The next message, which must come within a minute.
async fn next(stream: &mut Streaming<WatchStorageResponse>) -> WatchStorageResponse {
    timeout(MINUTE, stream.message()).await.expect("no message").unwrap().expect("the stream ended")
}

/// The last message of a minute.
async fn last(stream: &mut Streaming<WatchStorageResponse>) -> Option<WatchStorageResponse> {
    let mut last = None;
    while let Ok(message) = timeout(MINUTE, stream.message()).await {
        last = message.unwrap();
    }
    last
}

fn pv(vg: &str, index: u32, bytes: u64) -> PhysicalVolumeItem {
    PhysicalVolumeItem {
        path: format!("/dev/fake{index}"),
        uuid: format!("uuid-of-{vg}-{index}"),
        size_bytes: bytes,
        free_bytes: bytes,
        dev_major: 8,
        dev_minor: index,
        missing: false,
        allocatable: true,
        evacuation: None,
        ..PhysicalVolumeItem::default()
    }
}

fn class(name: &str, volume_group: &str, size_bytes: u64, free_bytes: u64) -> DeviceClassItem {
    let (name, volume_group) = (name.to_owned(), volume_group.to_owned());
    DeviceClassItem { name, volume_group, size_bytes, free_bytes, ..DeviceClassItem::default() }
}

#[tokio::test(start_paused = true)]
async fn storage_stream_starts_with_groups_disks_and_classes() {
    let node = Node::start().await;
    let mut stream = watch(&node).await;
    let group = |name: &str, size: u64, disks: u32| VolumeGroupItem {
        name: name.to_owned(),
        found: true,
        uuid: format!("uuid-of-{name}"),
        size_bytes: size,
        free_bytes: size,
        extent_size_bytes: EXTENT,
        physical_volumes: (0..disks).map(|index| pv(name, index, size / u64::from(disks))).collect(),
        stale_reason: String::new(),
        logical_volumes: 0,
        snapshots: 0,
    };
    let expected = WatchStorageResponse {
        volume_groups: vec![group("vg-hdd", 20 * GIB, 2), group("vg-ssd", 10 * GIB, 1)],
        device_classes: vec![
            DeviceClassItem { default: true, ..class("ssd", "vg-ssd", 10 * GIB, 9 * GIB) },
            class("hdd", "vg-hdd", 20 * GIB, 20 * GIB),
        ],
        ..WatchStorageResponse::default()
    };
    assert_eq!(next(&mut stream).await, expected);
    assert_eq!(last(&mut stream).await, None);
}

#[tokio::test(start_paused = true)]
async fn storage_stream_reports_pool_usage_per_whole_percent() {
    let node = Node::start_thin().await;
    let mut stream = watch(&node).await;
    let first = next(&mut stream).await;
    let pool = |name: &str, size_bytes| ThinPoolStatus {
        name: name.to_owned(),
        volume_group: "vg".to_owned(),
        size_bytes,
        data_percent: Some(0),
        metadata_percent: Some(0),
        problem: String::new(),
    };
    assert_eq!(first.thin_pools, [pool("pool", 4 * GIB), pool("pool2", GIB)]);
    let thin = DeviceClassItem { default: true, thin_pool: "pool".to_owned(), ..class("thin", "vg", 4 * GIB, 5 * GIB) };
    assert_eq!(first.device_classes[1], thin);

    node.lvm.edit_volume("vg", "pool", |pool| pool.data_percent = 12.4);
    assert_eq!(next(&mut stream).await.thin_pools[0].data_percent, Some(12));
    node.lvm.edit_volume("vg", "pool", |pool| (pool.data_percent, pool.metadata_percent) = (12.9, 0.7));
    assert_eq!(last(&mut stream).await, None);
    node.lvm.edit_volume("vg", "pool", |pool| pool.data_percent = 13.0);
    assert_eq!(next(&mut stream).await.thin_pools[0].data_percent, Some(13));
}

#[tokio::test(start_paused = true)]
async fn missing_disk_is_a_problem_with_its_last_path_until_back() {
    let node = Node::start().await;
    node.notice().await;
    let mut stream = watch(&node).await;
    let before = next(&mut stream).await;
    node.lvm.set_missing_pvs("vg-hdd", 1);
    let message = last(&mut stream).await.unwrap();
    let [missing, there] = &message.volume_groups[0].physical_volumes[..] else { panic!("{message:?}") };
    assert_eq!((missing.path.as_str(), missing.missing, missing.allocatable), ("/dev/fake0", true, false));
    assert_eq!((missing.dev_major, there.missing), (0, false));
    assert!(
        message.problems[0].contains("1 physical volumes of volume group vg-hdd are missing"),
        "{:?}",
        message.problems
    );
    assert_eq!(message.device_classes[1].free_bytes, 0);
    node.lvm.set_missing_pvs("vg-hdd", 0);
    assert_eq!(last(&mut stream).await, Some(before));

    // An lvmd that starts without the disk does not know its former path.
    node.lvm.set_missing_pvs("vg-hdd", 1);
    let later = node.restart(CONFIG).await;
    let mut stream = watch(&later).await;
    let message = next(&mut stream).await;
    let missing = &message.volume_groups[0].physical_volumes[0];
    assert_eq!((missing.path.as_str(), missing.missing), ("", true));
}

#[tokio::test(start_paused = true)]
async fn missing_group_is_a_problem_and_an_unreadable_one_keeps_state() {
    let node = Node::start().await;
    let mut stream = watch(&node).await;
    let before = next(&mut stream).await;
    node.lvm.fail_always("fullreport", Fault::Spawn);
    node.lvm.extend_group("vg-ssd", GIB);
    let message = last(&mut stream).await.unwrap();
    let group = &message.volume_groups[1];
    assert_eq!((group.size_bytes, group.found), (10 * GIB, true));
    assert!(!group.stale_reason.is_empty());
    assert!(message.problems[0].starts_with("LVM fails for volume group vg-ssd: "), "{:?}", message.problems);

    node.lvm.clear_faults();
    node.lvm.remove_group("vg-ssd");
    let message = last(&mut stream).await.unwrap();
    let gone = VolumeGroupItem { name: "vg-ssd".to_owned(), ..VolumeGroupItem::default() };
    assert_eq!(message.volume_groups, [before.volume_groups[0].clone(), gone]);
    assert_eq!(message.problems, ["volume group vg-ssd not found; check that its disks are attached"]);
}

#[tokio::test(start_paused = true)]
async fn storage_stream_counts_volumes_and_their_cow_snapshots() {
    let node = Node::start().await;
    let mut stream = watch(&node).await;
    next(&mut stream).await;
    node.lvm.add_volume("vg-ssd", "a", FakeVolume::thick(EXTENT));
    node.lvm.add_volume("vg-ssd", "s", FakeVolume::snapshot(EXTENT, "a"));
    let message = last(&mut stream).await.unwrap();
    let counts = message.volume_groups.iter().map(|group| (group.logical_volumes, group.snapshots));
    assert_eq!(counts.collect::<Vec<_>>(), [(0, 0), (2, 1)]);
}

#[tokio::test(start_paused = true)]
async fn storage_problems_include_full_pools_and_failed_volumes() {
    let node = Node::start_thin().await;
    let mut stream = watch(&node).await;
    next(&mut stream).await;
    node.lvm.add_volume("vg", "a", FakeVolume { attr: "-wi-a---p-".to_owned(), ..FakeVolume::thick(EXTENT) });
    node.lvm.add_volume("vg", "b", FakeVolume { attr: "-wi-a---p-".to_owned(), ..FakeVolume::thick(EXTENT) });
    node.lvm.add_volume("vg", "c", FakeVolume { attr: "rwi-a-r-r-".to_owned(), ..FakeVolume::thick(EXTENT) });
    node.lvm.edit_volume("vg", "pool", |pool| pool.data_percent = 100.0);
    node.lvm.remove_volume("vg", "pool2");
    let problems = last(&mut stream).await.unwrap().problems;
    let expected = [
        "thin pool vg/pool accepts no new volumes: its data or metadata are nearly full; delete data in it, or extend \
         it with `lvextend -L +SIZE vg/pool` and its metadata with `lvextend --poolmetadatasize +SIZE vg/pool`",
        "thin pool vg/pool2 not found; create it with `lvcreate -T vg/pool2 -L SIZE`",
        "logical volume vg/c: a device of the RAID volume had errors and must be refreshed or replaced",
        "logical volumes vg/a and 1 more: a physical volume that the volume needs is missing",
    ];
    assert_eq!(problems, expected);
}

#[tokio::test(start_paused = true)]
async fn storage_stream_omits_unused_groups_and_runs_no_lvm_process() {
    let lvm = FakeLvm::new().with_group("vg", 20 * GIB).with_group("left", GIB).with_group("theirs", GIB);
    lvm.add_volume("vg", "pool", FakeVolume::thin_pool(4 * GIB));
    lvm.add_volume("vg", "pool2", FakeVolume::thin_pool(GIB));
    lvm.add_volume("left", "a", FakeVolume { tags: vec![MANAGED.to_owned()], ..FakeVolume::thick(EXTENT) });
    let node = Node::start_with(lvm, THIN_CONFIG).await;
    let before = node.lvm.processes();
    let message = next(&mut watch(&node).await).await;
    assert_eq!(node.lvm.processes(), before);
    assert_eq!(message.volume_groups.iter().map(|group| group.name.as_str()).collect::<Vec<_>>(), ["left", "vg"]);
}
