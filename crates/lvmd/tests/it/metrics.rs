//! Metrics of volume groups, device classes and LVM processes.

use std::time::Duration;

use lvm::Lvm;
use lvmd::{EngineMetrics, LvmMetrics, Metered};
use prometheus_client::registry::Registry;
use tokio::time::sleep;
use topolvm_testkit::lvm::{FakeLvm, FakeVolume, Fault};

use crate::node::{GIB, Node, two_of_one_name};

/// The value of a line, which must be there.
fn value(node: &Node, line: &str) -> f64 {
    let mut registry = Registry::default();
    EngineMetrics::register(&mut registry).show(&node.engine);
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let found = text.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(' '));
    found.unwrap_or_else(|| panic!("no {line} in {text}")).parse().unwrap()
}

#[tokio::test(start_paused = true)]
async fn volume_group_is_stale_and_ages_while_lvm_reports_fail() {
    let node = Node::start().await;
    let stale =
        |node: &Node, vg: &str| value(node, &format!("topolvm_lvmd_volume_group_stale{{volume_group=\"{vg}\"}}"));
    assert!(stale(&node, "vg-ssd") < 0.5);
    node.lvm.fail_always("fullreport", Fault::Timeout);
    node.lvm.extend_group("vg-ssd", GIB);
    sleep(Duration::from_secs(100)).await;
    assert!(stale(&node, "vg-ssd") > 0.5);
    assert!(stale(&node, "vg-hdd") < 0.5);
    assert!(value(&node, "topolvm_lvmd_volume_group_age_seconds{volume_group=\"vg-ssd\"}") >= 100.0);
}

#[tokio::test(start_paused = true)]
async fn volume_group_with_a_duplicate_name_is_stale_and_not_gone() {
    let node = Node::start().await;
    node.lvm.fail_always("fullreport", two_of_one_name("vg-ssd"));
    node.lvm.extend_group("vg-ssd", GIB);
    node.notice().await;
    assert!(value(&node, "topolvm_lvmd_volume_group_stale{volume_group=\"vg-ssd\"}") > 0.5);
    assert!(value(&node, "topolvm_lvmd_device_class_available_bytes{device_class=\"ssd\"}") < 0.5);
}

#[tokio::test(start_paused = true)]
async fn free_space_of_a_class_is_exported_without_a_process() {
    let node = Node::start_thin().await;
    node.create("thin", "a", GIB).await.unwrap();
    node.lvm.edit_volume("vg", "pool", |pool| pool.data_percent = 12.5);
    node.notice().await;
    let before = node.lvm.processes();
    let of_thin = |name: &str| value(&node, &format!("topolvm_lvmd_device_class_{name}{{device_class=\"thin\"}}"));
    let values = ["size_bytes", "available_bytes", "volumes", "thin_data_percent"].map(of_thin);
    let gib = f64::from(1 << 30);
    assert_eq!(
        values.map(|value| value.to_string()),
        [20.0 * gib, 4.0 * gib, 1.0, 12.5].map(|value| value.to_string())
    );
    assert_eq!(node.lvm.processes(), before);
}

#[tokio::test(start_paused = true)]
async fn used_part_of_the_spare_is_exported() {
    let node = Node::start().await;
    let used = || value(&node, "topolvm_lvmd_device_class_used_spare_bytes{device_class=\"ssd\"}").to_string();
    node.create("ssd", "a", 9 * GIB).await.unwrap();
    assert_eq!(used(), "0");
    node.lvm.add_volume("vg-ssd", "theirs", FakeVolume::thick(GIB / 4));
    node.notice().await;
    assert_eq!(used(), (GIB / 4).to_string());
}

#[tokio::test(start_paused = true)]
async fn pools_that_ignore_discards_are_exported_without_a_process() {
    let node = Node::start_thin().await;
    let ignoring =
        || value(&node, "topolvm_lvmd_volume_group_pools_ignoring_discards{volume_group=\"vg\"}").to_string();
    node.notice().await;
    assert_eq!(ignoring(), "0");
    node.lvm.edit_volume("vg", "pool2", |pool| pool.discards = "ignore_discard");
    node.notice().await;
    let before = node.lvm.processes();
    assert_eq!(ignoring(), "1");
    assert_eq!(node.lvm.processes(), before);
}

#[tokio::test(start_paused = true)]
async fn lvm_processes_are_timed_and_counted_by_command_and_outcome() {
    let mut registry = Registry::default();
    let fake = FakeLvm::new().with_group("vg", GIB);
    let lvm = Lvm::new(Metered::new(fake.clone(), LvmMetrics::register(&mut registry)));
    let vg = "vg".parse().unwrap();
    lvm.volume_group(&vg).await.unwrap();
    for fault in [Fault::says("no"), Fault::Timeout, Fault::Spawn] {
        fake.fail("fullreport", 1, fault);
        lvm.volume_group(&vg).await.unwrap_err();
    }
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    for outcome in ["ok", "failed", "timeout", "not_run"] {
        let line = format!("topolvm_lvm_commands_total{{command=\"fullreport\",outcome=\"{outcome}\"}} 1");
        assert!(text.contains(&line), "no {line} in {text}");
    }
    assert!(text.contains("topolvm_lvm_command_seconds_count{command=\"fullreport\"} 4"), "{text}");
}

/// LVM's shell goes on after a command that failed and ends well.
#[tokio::test(start_paused = true)]
async fn a_change_that_failed_in_lvms_shell_counts_as_failed() {
    let mut registry = Registry::default();
    let fake = FakeLvm::new().with_group("vg", GIB);
    let lvm = Lvm::new(Metered::new(fake.clone(), LvmMetrics::register(&mut registry)));
    let (vg, name) = ("vg".parse().unwrap(), "a".parse().unwrap());
    lvm.remove(&vg, &name).await.done.unwrap_err();
    let mut text = String::new();
    prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
    let line = |outcome: &str| format!("topolvm_lvm_commands_total{{command=\"lvremove\",outcome=\"{outcome}\"}} 1");
    assert!(text.contains(&line("failed")) && !text.contains(&line("ok")), "{text}");
}
