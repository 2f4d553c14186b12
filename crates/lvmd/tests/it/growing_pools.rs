//! Thin pools that are made larger as they fill up.

use std::time::Duration;

use lvmd::EngineMetrics;
use prometheus_client::registry::Registry;
use topolvm_testkit::lvm::{EXTENT, FakeLvm, FakeVolume, Fault};

use crate::node::{GIB, MIB, Node};

/// A class on a pool of 4 GiB in a group of 20 GiB, with these keys more, and other classes.
fn config(growth: &str, others: &str) -> String {
    format!(
        "device-classes: [{{name: thin, volume-group: vg, default: true, type: thin, \
         thin-pool: {{name: pool, overprovision-ratio: 2{growth}}}}}{others}]"
    )
}

async fn start(growth: &str, others: &str) -> Node {
    let lvm = FakeLvm::new().with_group("vg", 20 * GIB);
    lvm.add_volume("vg", "pool", FakeVolume::thin_pool(4 * GIB));
    Node::start_with(lvm, &config(growth, others)).await
}

const GROWTH: &str = ", grow-at-percent: 80";

fn extensions(node: &Node) -> Vec<String> {
    node.lvm.commands().into_iter().filter(|command| command.starts_with("lvextend")).collect()
}

async fn fill(node: &Node, data: f64, metadata: f64) {
    node.lvm.edit_volume("vg", "pool", |pool| (pool.data_percent, pool.metadata_percent) = (data, metadata));
    node.notice().await;
}

fn size(node: &Node) -> u64 {
    node.lvm.volume("vg", "pool").unwrap().bytes()
}

fn problems(node: &Node) -> Vec<String> {
    node.engine.storage_report().problems
}

#[tokio::test(start_paused = true)]
async fn a_pool_grows_once_when_it_reaches_its_threshold() {
    let node = start(GROWTH, "").await;
    fill(&node, 79.9, 0.0).await;
    assert_eq!(extensions(&node), [""; 0]);
    fill(&node, 80.0, 0.0).await;
    assert_eq!(extensions(&node), ["lvextend -y -L 5154799616b vg/pool"]);
    assert_eq!(node.free("thin").await.unwrap(), 2 * 5_154_799_616);
    tokio::time::sleep(Duration::from_mins(30)).await;
    assert_eq!(extensions(&node).len(), 1);
    // Filled at once: as far as it must
    fill(&node, 100.0, 0.0).await;
    assert_eq!(extensions(&node).len(), 2);
    assert!(node.lvm.volume("vg", "pool").unwrap().data_percent < 80.0);
    assert_eq!(problems(&node), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_pool_whose_class_does_not_ask_for_it_stays_as_it_is() {
    let node = start("", "").await;
    fill(&node, 99.0, 0.0).await;
    assert_eq!(extensions(&node), [""; 0]);
    // Until it does
    let node = node.restart(&config(", grow-at-percent: 90, grow-by-percent: 100", "")).await;
    node.notice().await;
    assert_eq!(size(&node), 8 * GIB);
}

#[tokio::test(start_paused = true)]
async fn a_pool_grows_to_its_maximum_and_says_that_it_has_it() {
    let node = start(", grow-at-percent: 50, grow-by-percent: 100, maximum-size-gb: 7", "").await;
    fill(&node, 60.0, 0.0).await;
    assert_eq!((size(&node), problems(&node).len()), (7 * GIB, 0));
    fill(&node, 60.0, 0.0).await;
    assert_eq!(size(&node), 7 * GIB);
    assert!(problems(&node)[0].contains("has reached maximum-size-gb"), "{:?}", problems(&node));
    fill(&node, 40.0, 0.0).await;
    assert_eq!(problems(&node), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_pool_takes_nothing_of_what_the_plain_class_keeps() {
    let node = start(GROWTH, ", {name: thick, volume-group: vg, spare-gb: 15}").await;
    fill(&node, 100.0, 0.0).await;
    assert_eq!((size(&node), node.lvm.free("vg")), (5 * GIB, 15 * GIB));
    assert!(node.lvm.volume("vg", "pool").unwrap().data_percent >= 80.0);
    node.notice().await;
    assert!(problems(&node)[0].contains("has no free space beyond spare-gb"), "{:?}", problems(&node));
    let done = node.lvm.processes();
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!(node.lvm.processes(), done, "LVM was asked again and again");
    node.lvm.extend_group("vg", GIB);
    node.notice().await;
    assert_eq!(size(&node), 6 * GIB);
}

#[tokio::test(start_paused = true)]
async fn metadata_grow_by_themselves() {
    let node = start(GROWTH, "").await;
    // Of metadata of 4 MiB LVM wants a quarter free
    fill(&node, 10.0, 69.0).await;
    assert_eq!(extensions(&node), [""; 0]);
    fill(&node, 10.0, 70.0).await;
    assert_eq!(extensions(&node), ["lvextend -y --poolmetadatasize 8388608b vg/pool"]);
    let pool = node.lvm.volume("vg", "pool").unwrap();
    assert_eq!((pool.metadata_extents * EXTENT, pool.bytes()), (8 * MIB, 4 * GIB));
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_lvm_extends_is_left_to_it() {
    let lvm = FakeLvm::new().with_group("vg", 20 * GIB);
    lvm.add_volume("vg", "pool", FakeVolume { monitoring: "monitored", ..FakeVolume::thin_pool(4 * GIB) });
    lvm.set_thin_pool_threshold(90);
    let node = Node::start_with(lvm, &config(GROWTH, "")).await;
    node.notice().await;
    assert!(problems(&node)[0].contains("extended by LVM itself (thin_pool_autoextend_threshold is 90"));
    fill(&node, 85.0, 0.0).await;
    tokio::time::sleep(Duration::from_mins(5)).await;
    assert_eq!((extensions(&node).len(), node.lvm.count("lvs")), (0, 1));
    // dmeventd is stopped
    node.lvm.edit_volume("vg", "pool", |pool| pool.monitoring = "not monitored");
    tokio::time::sleep(Duration::from_mins(6)).await;
    assert_eq!((extensions(&node).len(), problems(&node).len()), (1, 0));
    // And is started again, just before the next growth
    node.lvm.edit_volume("vg", "pool", |pool| pool.monitoring = "monitored");
    fill(&node, 85.0, 0.0).await;
    assert_eq!(extensions(&node).len(), 1);
    assert_eq!(problems(&node).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn lvm_that_cannot_say_whether_it_extends_a_pool_is_asked_again() {
    let lvm = FakeLvm::new().with_group("vg", 20 * GIB);
    lvm.add_volume("vg", "pool", FakeVolume::thin_pool(4 * GIB));
    lvm.set_thin_pool_threshold(90);
    lvm.fail("lvs", 1, Fault::says("no"));
    let node = Node::start_with(lvm, &config(GROWTH, "")).await;
    fill(&node, 85.0, 0.0).await;
    node.notice().await;
    assert_eq!((extensions(&node).len(), problems(&node).len()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn failed_extension_is_reported_and_retried_later() {
    let node = start(GROWTH, "").await;
    let mut registry = Registry::default();
    EngineMetrics::register(&mut registry).show(&node.engine);
    let metrics = || {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let is_ours = |line: &&str| line.starts_with("topolvm_lvmd_thin_pool_");
        text.lines().filter(is_ours).map(|line| line.rsplit(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    node.notice().await;
    assert_eq!(metrics(), ["0.0", "0", "0"]);
    node.lvm.fail_always("lvextend", Fault::says("not now"));
    fill(&node, 85.0, 0.0).await;
    assert!(problems(&node)[0].contains("not now"), "{:?}", problems(&node));
    assert_eq!(metrics(), ["1.0", "0", "1"]);
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert!((3..=6).contains(&extensions(&node).len()), "{:?}", extensions(&node));
    node.lvm.clear_faults();
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!((metrics()[..2].to_vec(), problems(&node).len()), (vec!["0.0".to_owned(), "1".to_owned()], 0));
}

#[tokio::test(start_paused = true)]
async fn thin_pool_extension_skips_broken_inactive_incomplete_pools() {
    type Break = fn(&FakeLvm);
    let breaks: [Break; 3] = [
        |lvm| lvm.edit_volume("vg", "pool", |pool| "twi-aotzF-".clone_into(&mut pool.attr)),
        |lvm| lvm.edit_volume("vg", "pool", |pool| pool.active = false),
        |lvm| lvm.set_missing_pvs("vg", 1),
    ];
    for (number, break_it) in breaks.into_iter().enumerate() {
        let node = start(GROWTH, "").await;
        node.notice().await;
        break_it(&node.lvm);
        node.notice().await;
        fill(&node, 90.0, 0.0).await;
        tokio::time::sleep(Duration::from_mins(2)).await;
        assert_eq!(extensions(&node), [""; 0], "{number}");
    }
    // One that is only full is
    let node = start(GROWTH, "").await;
    node.lvm.edit_volume("vg", "pool", |pool| "twi-aotzD-".clone_into(&mut pool.attr));
    fill(&node, 100.0, 0.0).await;
    assert_eq!(extensions(&node).len(), 1);
}
