//! Thin device classes: several pools and a thick class on one volume group.

use std::path::Path;
use std::time::Duration;

use futures::future::join_all;
use lvm::Lvm;
use lvmd_config::Config;
use lvmd_config::tags::InstanceId;
use lvmd_engine::{Engine, StartError};
use rstest::rstest;
use tonic::Code;
use topolvm_proto::lvmd::{Empty, ThinPoolItem, WatchItem, WatchResponse};
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_testkit::lvm::{EXTENT, FakeLvm, FakeVolume, Fault};

use crate::node::{GIB, MIB, Node, SOCKET, THIN_CONFIG, code, snapshot_request};

fn signed(bytes: u64) -> i64 {
    bytes.try_into().unwrap()
}

async fn watched(node: &Node) -> WatchResponse {
    node.vg.clone().watch(Empty {}).await.unwrap().into_inner().message().await.unwrap().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_thin_volume_lives_in_the_pool_of_its_class() {
    let node = Node::start_thin().await;
    let volume = node.create("thin", "a", GIB).await.unwrap();
    assert_eq!((volume.size_bytes, volume.attr.as_str()), (signed(GIB), "Vwi-a-tz--"));
    assert_eq!(node.lvm.volume("vg", "a").unwrap().pool.as_deref(), Some("pool"));
    let commands = node.lvm.commands();
    let created = commands.iter().find(|command| command.starts_with("lvcreate")).unwrap();
    assert!(created.starts_with("lvcreate -T vg/pool -n a -V 1073741824b -W y -y --addtag "), "{created}");
}

#[tokio::test(start_paused = true)]
async fn thin_volume_list_shows_bytes_used_in_the_pool() {
    let node = Node::start_thin().await;
    for name in ["a", "inactive"] {
        node.create("thin", name, GIB).await.unwrap();
    }
    node.create("thick", "b", GIB).await.unwrap();
    node.lvm.edit_volume("vg", "a", |volume| volume.mapped_sectors = 2048);
    node.lvm.edit_volume("vg", "inactive", |volume| volume.active = false);
    let used = async |class: &str| {
        let listed = node.list(class).await.unwrap();
        listed.into_iter().map(|volume| (volume.name, volume.thin_used_bytes)).collect::<Vec<_>>()
    };
    assert_eq!(used("thin").await, [("a".to_owned(), Some(MIB)), ("inactive".to_owned(), None)]);
    assert_eq!(used("thick").await, [("b".to_owned(), None)]);
}

#[tokio::test(start_paused = true)]
async fn thin_pool_capacity_is_size_times_ratio_less_the_spare() {
    let node = Node::start_thin().await;
    assert_eq!(node.free("thin").await.unwrap(), 5 * GIB);
    let status = node.create("thin", "a", 5 * GIB + 4096).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "no enough space left on VG: free=5368709120, requested=5368713216");
    node.create("thin", "a", 5 * GIB).await.unwrap();
    assert_eq!(node.free("thin").await.unwrap(), 0);
    assert_eq!(code(node.create("thin", "b", 4096).await), Code::ResourceExhausted);
    assert_eq!(code(node.resize("thin", "a", signed(5 * GIB + 1)).await), Code::ResourceExhausted);
}

#[tokio::test(start_paused = true)]
async fn overcommitted_pool_has_no_free_space() {
    let node = Node::start_thin().await;
    node.lvm.add_volume("vg", "a", FakeVolume::thin(100 * GIB, "pool"));
    node.notice().await;
    assert_eq!(node.free("thin").await.unwrap(), 0);
    assert_eq!(node.resize("thin", "a", 1).await.unwrap(), signed(100 * GIB));
}

#[tokio::test(start_paused = true)]
async fn the_space_of_a_pool_is_not_that_of_another_or_the_group() {
    let node = Node::start_thin().await;
    let free = |class| {
        let node = &node;
        async move { node.free(class).await.unwrap() }
    };
    node.create("thin", "a", 2 * GIB).await.unwrap();
    node.create("other", "b", 7 * GIB).await.unwrap();
    node.create("thick", "c", 4 * GIB).await.unwrap();
    assert_eq!((free("thin").await, free("other").await, free("thick").await), (3 * GIB, 3 * GIB, 10 * GIB));
}

#[tokio::test(start_paused = true)]
async fn parallel_requests_never_exceed_the_overprovision_ratio() {
    let node = Node::start_thin().await;
    node.lvm.set_latency(Duration::from_millis(20));
    let names: Vec<_> = (0..50).map(|number| format!("v{number}")).collect();
    let results = join_all(names.iter().map(|name| node.create("thin", name, 256 * MIB))).await;
    let (made, refused): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    assert_eq!(made.len(), 20, "5 GiB make 20 volumes of 256 MiB");
    assert!(refused.into_iter().all(|result| code(result) == Code::ResourceExhausted));
}

#[tokio::test(start_paused = true)]
async fn a_thin_volume_grows_and_never_shrinks() {
    let node = Node::start_thin().await;
    node.create("thin", "a", GIB).await.unwrap();
    assert_eq!(node.resize("thin", "a", signed(GIB + 1)).await.unwrap(), signed(GIB + EXTENT));
    assert_eq!(node.resize("thin", "a", 1).await.unwrap(), signed(GIB + EXTENT));
    assert_eq!(node.free("thin").await.unwrap(), 4 * GIB - EXTENT);
}

#[tokio::test(start_paused = true)]
async fn each_class_lists_its_own_volumes_only() {
    let node = Node::start_thin().await;
    for (class, name) in [("thin", "a"), ("other", "b"), ("thick", "c")] {
        node.create(class, name, GIB).await.unwrap();
    }
    for (class, name) in [("thin", "a"), ("other", "b"), ("thick", "c"), ("", "a")] {
        let names: Vec<_> = node.list(class).await.unwrap().into_iter().map(|volume| volume.name).collect();
        assert_eq!(names, [name], "{class:?}");
    }
}

#[rstest]
#[case::other_pool("other")]
#[case::no_pool("thick")]
#[tokio::test(start_paused = true)]
async fn thin_class_never_changes_a_same_named_volume_elsewhere(#[case] class: &str) {
    let node = Node::start_thin().await;
    node.create(class, "a", GIB).await.unwrap();
    let before = node.lvm.volume("vg", "a");
    let status = node.remove("thin", "a").await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("is not in thin pool pool, where device class thin keeps"), "{status}");
    assert_eq!(code(node.resize("thin", "a", signed(2 * GIB)).await), Code::FailedPrecondition);
    assert_eq!(code(node.create("thin", "a", GIB).await), Code::AlreadyExists);
    assert_eq!(node.lvm.volume("vg", "a"), before);
}

#[tokio::test(start_paused = true)]
async fn a_thick_class_never_touches_what_is_in_a_pool() {
    let node = Node::start_thin().await;
    node.create("thin", "a", GIB).await.unwrap();
    let before = node.lvm.volume("vg", "a");
    assert_eq!(code(node.remove("thick", "a").await), Code::FailedPrecondition);
    assert_eq!(code(node.resize("thick", "a", signed(2 * GIB)).await), Code::FailedPrecondition);
    assert_eq!(code(node.create("thick", "a", GIB).await), Code::AlreadyExists);
    assert_eq!(code(node.remove("thick", "pool").await), Code::FailedPrecondition);
    assert_eq!(node.lvm.volume("vg", "a"), before);
}

#[tokio::test(start_paused = true)]
async fn the_origin_of_thin_snapshots_can_go_and_they_stay() {
    let node = Node::start_thin().await;
    node.create("thin", "a", GIB).await.unwrap();
    let snapshot = FakeVolume { origin: Some("a".to_owned()), ..FakeVolume::thin(GIB, "pool") };
    node.lvm.add_volume("vg", "b", snapshot);
    node.notice().await;
    assert_eq!(node.free("thin").await.unwrap(), 3 * GIB, "a snapshot counts in full");
    node.remove("thin", "a").await.unwrap();
    assert!(node.lvm.volume("vg", "b").is_some());
}

#[tokio::test(start_paused = true)]
async fn a_thick_volume_that_thin_snapshots_read_from_stays() {
    let node = Node::start_thin().await;
    node.create("thick", "a", GIB).await.unwrap();
    let reader = FakeVolume { origin: Some("a".to_owned()), ..FakeVolume::thin(GIB, "pool") };
    node.lvm.add_volume("vg", "b", reader);
    let status = node.remove("thick", "a").await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("has snapshots that would be lost: b"), "{status}");
}

#[tokio::test(start_paused = true)]
async fn missing_thin_pool_is_neither_empty_nor_full_nor_not_found() {
    let node = Node::start_thin().await;
    node.lvm.remove_volume("vg", "pool");
    node.notice().await;
    for code in
        [code(node.create("thin", "a", GIB).await), code(node.free("thin").await), code(node.list("thin").await)]
    {
        assert_eq!(code, Code::FailedPrecondition);
    }
    assert_eq!(node.free("other").await.unwrap(), 10 * GIB);
}

#[tokio::test(start_paused = true)]
async fn watchers_get_the_state_and_the_limit_of_a_pool() {
    let node = Node::start_thin().await;
    node.create("thin", "a", 2 * GIB).await.unwrap();
    node.lvm.edit_volume("vg", "pool", |pool| {
        pool.data_percent = 12.5;
        pool.metadata_percent = 1.25;
    });
    node.notice().await;
    let attr = "twi-aotz--".to_owned();
    let item = |class: &str, free_bytes, thin_pool| WatchItem {
        free_bytes,
        device_class: class.to_owned(),
        size_bytes: 20 * GIB,
        thin_pool,
        volume_group_free_bytes: free_bytes,
        ..WatchItem::default()
    };
    let pool = ThinPoolItem {
        data_percent: 12.5,
        metadata_percent: 1.25,
        overprovision_bytes: 3 * GIB,
        size_bytes: 4 * GIB,
        attr: attr.clone(),
    };
    let other = ThinPoolItem { overprovision_bytes: 10 * GIB, size_bytes: GIB, attr, ..ThinPoolItem::default() };
    let expected = WatchResponse {
        free_bytes: 3 * GIB,
        items: vec![
            item("thick", 14 * GIB, None),
            item("thin", 15 * GIB, Some(pool)),
            item("other", 15 * GIB, Some(other)),
        ],
        default_class: "thin".to_owned(),
    };
    assert_eq!(watched(&node).await, expected);
}

#[tokio::test(start_paused = true)]
async fn watchers_see_no_free_space_in_a_missing_pool() {
    let node = Node::start_thin().await;
    node.lvm.remove_volume("vg", "pool");
    node.notice().await;
    let message = watched(&node).await;
    assert_eq!(message.free_bytes, 0);
    assert_eq!(message.items[1].thin_pool, Some(ThinPoolItem::default()));
    assert_eq!(message.items[2].thin_pool.as_ref().unwrap().overprovision_bytes, 10 * GIB);
}

#[tokio::test(start_paused = true)]
async fn lvmd_does_not_start_without_the_pool_of_a_class() {
    let shutdown = CancellationToken::new();
    let config =
        "device-classes: [{name: t, volume-group: vg, type: thin, thin-pool: {name: p, overprovision-ratio: 1}}]";
    let classes = Config::parse("lvmd.yaml", config).unwrap().classes;
    let lvm = FakeLvm::new().with_group("vg", GIB);
    // A volume of that name is no pool.
    lvm.add_volume("vg", "p", FakeVolume::thick(EXTENT));
    let error = Engine::start(
        Lvm::new(lvm),
        classes,
        InstanceId::new(Path::new(SOCKET), None),
        &Tasks::new(shutdown.clone()),
        shutdown,
    )
    .await
    .map(drop)
    .unwrap_err();
    assert!(matches!(error, StartError::NoThinPool { .. }), "{error}");
    assert!(error.to_string().contains("`lvcreate -T vg/p -L SIZE`"), "{error}");
}

/// The free bytes of the class `thin`, as watchers and other clients get them.
async fn free_of_thin(node: &Node) -> u64 {
    let free = node.free("thin").await.unwrap();
    let message = watched(node).await;
    let item = message.items.into_iter().find(|item| item.device_class == "thin").unwrap();
    assert_eq!((message.free_bytes, item.thin_pool.unwrap().overprovision_bytes), (free, free));
    free
}

#[rstest]
#[case::data("twi-aotz--", 100.0, 1.0)]
#[case::out_of_data_space("twi-aotzD-", 99.0, 1.0)]
#[case::metadata("twi-aotz--", 1.0, 75.0)]
#[case::metadata_read_only("twi-aotzM-", 1.0, 1.0)]
#[case::above_the_threshold("twi-aotz--", 70.5, 1.0)]
#[case::metadata_above_the_threshold("twi-aotz--", 1.0, 70.5)]
#[tokio::test(start_paused = true)]
async fn thin_pool_refused_by_lvm_has_no_capacity_until_it_recovers(
    #[case] attr: &str,
    #[case] data: f64,
    #[case] metadata: f64,
) {
    let node = Node::start_thin().await;
    node.lvm.set_thin_pool_threshold(70);
    let node = node.restart(THIN_CONFIG).await;
    node.create("thin", "a", GIB).await.unwrap();
    let set = |attr: &str, data: f64, metadata: f64| {
        node.lvm.edit_volume("vg", "pool", |pool| {
            attr.clone_into(&mut pool.attr);
            (pool.data_percent, pool.metadata_percent) = (data, metadata);
        });
    };
    set("twi-aotz--", 70.0, 1.0);
    node.notice().await;
    assert_eq!(free_of_thin(&node).await, 4 * GIB);
    set(attr, data, metadata);
    node.notice().await;
    assert_eq!(free_of_thin(&node).await, 0);
    for refused in [node.create("thin", "b", GIB).await, node.snapshot(snapshot_request("s")).await] {
        let status = refused.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert!(status.message().contains("`lvextend -L +SIZE vg/pool`"), "{status}");
    }
    assert_eq!(code(node.resize("thin", "a", 2 << 30).await), Code::ResourceExhausted);
    assert_eq!(free_of_thin(&node).await, 0);
    // The other pool is another matter.
    node.create("other", "c", GIB).await.unwrap();
    set("twi-aotz--", 35.0, 1.0);
    node.notice().await;
    assert_eq!(free_of_thin(&node).await, 4 * GIB);
    node.create("thin", "b", GIB).await.unwrap();
}

#[rstest]
#[case::failed("twi-aotzF-")]
#[case::to_be_checked("twi-cotz--")]
#[tokio::test(start_paused = true)]
async fn a_broken_pool_has_no_capacity_and_is_not_called_full(#[case] attr: &str) {
    let node = Node::start_thin().await;
    node.lvm.edit_volume("vg", "pool", |pool| attr.clone_into(&mut pool.attr));
    // Noticed when LVM is asked, at the latest: nothing else reports a needed check.
    node.notice().await;
    node.create("thick", "x", GIB).await.unwrap();
    assert_eq!(free_of_thin(&node).await, 0);
    let status = node.create("thin", "b", GIB).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().ends_with("repair it, see lvmthin(7)"), "{status}");
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_fills_up_at_the_same_moment_is_no_internal_error() {
    let node = Node::start_thin().await;
    node.lvm.edit_volume("vg", "pool", |pool| pool.data_percent = 100.5);
    assert_eq!(code(node.create("thin", "a", GIB).await), Code::ResourceExhausted);
}

#[tokio::test(start_paused = true)]
async fn thin_pool_with_an_unknown_threshold_has_capacity_until_full() {
    let node = Node::start_thin().await;
    node.lvm.fail_always("lvmconfig", Fault::says("oops"));
    let node = node.restart(THIN_CONFIG).await;
    node.lvm.edit_volume("vg", "pool", |pool| pool.data_percent = 99.5);
    node.notice().await;
    assert_eq!(free_of_thin(&node).await, 5 * GIB);
    node.lvm.edit_volume("vg", "pool", |pool| pool.data_percent = 100.0);
    node.notice().await;
    assert_eq!(free_of_thin(&node).await, 0);
}
