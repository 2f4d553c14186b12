//! What the metrics tell of volume groups and device classes.

use std::time::Duration;

use lvmd::EngineMetrics;
use prometheus_client::registry::Registry;
use tokio::time::sleep;
use topolvm_testkit::lvm::Fault;

use crate::node::{GIB, Node};

/// The value of a line, which must be there.
fn value(node: &Node, line: &str) -> f64 {
    let mut registry = Registry::default();
    EngineMetrics::register(&node.engine, &mut registry);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let found = text.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("no {line} in {text}")).parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_group_that_lvm_cannot_be_asked_about_is_stale_and_grows_old() {
    let node = Node::start().await;
    let stale =
        |node: &Node, vg: &str| value(node, &format!("topolvm_lvmd_volume_group_stale{{volume_group=\"{vg}\"}}"));
    assert!(stale(&node, "vg-ssd") < 0.5);
    node.lvm.break_down("fullreport", Fault::Timeout);
    node.lvm.extend_group("vg-ssd", GIB);
    sleep(Duration::from_secs(100)).await;
    assert!(stale(&node, "vg-ssd") > 0.5);
    assert!(stale(&node, "vg-hdd") < 0.5);
    assert!(value(&node, "topolvm_lvmd_volume_group_age_seconds{volume_group=\"vg-ssd\"}") >= 100.0);
}

#[tokio::test(start_paused = true)]
async fn the_room_in_a_class_is_told_without_a_process() {
    let node = Node::start_thin().await;
    node.create("thin", "a", GIB).await.unwrap();
    node.lvm.edit_volume("vg", "pool", |pool| pool.data_percent = 12.5);
    node.notice().await;
    let before = node.lvm.processes();
    let of_thin = |name: &str| value(&node, &format!("topolvm_lvmd_device_class_{name}{{device_class=\"thin\"}}"));
    let told = ["size_bytes", "available_bytes", "volumes", "thin_data_percent"].map(of_thin);
    let gib = f64::from(1 << 30);
    assert_eq!(told.map(|value| value.to_string()), [20.0 * gib, 4.0 * gib, 1.0, 12.5].map(|value| value.to_string()));
    assert_eq!(node.lvm.processes(), before);
}
