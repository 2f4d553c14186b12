//! Logical volumes that were removed, renamed or deactivated by hand, and logical volumes without an object.

use std::sync::Arc;
use std::time::Duration;

use lvmd_client::{DeviceClass, DeviceClasses};
use prometheus_client::registry::Registry;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use topolvm_kube::{LogicalVolumeWriter, ReconcileMetrics};
use topolvm_node::reconcile::{Triggers, VolumeGauges};
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_testkit::lvm::FakeVolume;

use crate::cluster::{Cluster, GIB, LV, fresh, reconciler};
use crate::lvmd_process::{TWO_CLASSES, VG};

const EVENTS: &str = "events.events.k8s.io";

/// A reconciler that runs, and what it hears of lvmd.
struct Running {
    registry: Registry,
    device_classes: watch::Sender<DeviceClasses>,
    shutdown: CancellationToken,
}

impl Running {
    fn start(cluster: &Cluster) -> Self {
        let mut registry = Registry::default();
        let (device_classes, shutdown) = (watch::Sender::new(DeviceClasses::default()), CancellationToken::new());
        let gauges = VolumeGauges::register(&mut registry, "n1");
        let metrics = ReconcileMetrics::register(&mut registry);
        let signals = Triggers {
            lvmd_returns: mpsc::channel(1).1,
            device_classes: device_classes.subscribe(),
            published: mpsc::unbounded_channel().1,
            pods: mpsc::unbounded_channel().1,
            gauges,
        };
        let reconciler = Arc::new(reconciler(&cluster.api, cluster.lvmd.client()));
        let tasks = Tasks::new(shutdown.clone());
        tasks.spawn(
            "LogicalVolumes",
            reconciler.run(LogicalVolumeWriter::default(), signals, metrics, shutdown.clone()),
        );
        let running = Self { registry, device_classes, shutdown };
        running.send_message();
        running
    }

    /// Sends a message of lvmd's stream.
    fn send_message(&self) {
        self.device_classes.send_replace(DeviceClasses { is_connected: true, ..DeviceClasses::default() });
    }

    fn lost(&self) -> String {
        self.gauge("lost")
    }

    fn gauge(&self, name: &str) -> String {
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &self.registry).unwrap();
        let line = page.lines().find_map(|line| line.strip_prefix(&format!("topolvm_{name}_volumes{{node=\"n1\"}} ")));
        line.unwrap().to_owned()
    }

    /// Waits for a comparison that has this value.
    async fn until_gauge(&self, name: &str, value: &str) {
        let reached = async {
            while self.gauge(name) != value {
                self.send_message();
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), reached).await.unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

async fn until(cluster: &Cluster, name: &str, reason: &str) -> Value {
    let condition = |object: Option<&Value>| object?.pointer("/status/conditions/0").cloned();
    cluster.api.until(LV, "", name, |object| condition(object).filter(|found| found["reason"] == reason)).await
}

#[tokio::test]
async fn lost_volume_sets_condition_event_and_metric_until_it_is_back() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").build());
    cluster.api.apply_json(fresh("pvc-2").uid("u2").build());
    let running = Running::start(&cluster);
    for name in ["pvc-1", "pvc-2"] {
        until(&cluster, name, "VolumeReady").await;
    }
    cluster.lvm.remove_volume(VG, "u1");
    running.send_message();
    let condition = until(&cluster, "pvc-1", "VolumeLost").await;
    assert_eq!(condition["status"], "False");
    assert!(condition["message"].as_str().unwrap().contains("lvrename"), "{condition}");
    let status = cluster.status("pvc-1");
    assert_eq!((status.get("code"), status.get("message"), status["volumeID"].as_str()), (None, None, Some("u1")));
    cluster.api.wait_for_requests("create", EVENTS, 1).await;
    assert_eq!(cluster.api.list_json(EVENTS)[0]["reason"], "VolumeLost");
    assert_eq!(running.lost(), "1");
    assert_eq!(until(&cluster, "pvc-2", "VolumeReady").await["status"], "True");

    cluster.lvm.add_volume(VG, "u1", FakeVolume::thick(GIB));
    running.send_message();
    until(&cluster, "pvc-1", "VolumeReady").await;
    assert_eq!((running.lost().as_str(), cluster.api.count("create", EVENTS)), ("0", 1));
}

#[tokio::test]
async fn lost_volume_stays_lost_after_an_agent_restart() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").build());
    let first = Running::start(&cluster);
    until(&cluster, "pvc-1", "VolumeReady").await;
    cluster.lvm.remove_volume(VG, "u1");
    first.send_message();
    until(&cluster, "pvc-1", "VolumeLost").await;
    drop(first);
    cluster.reconcile("pvc-1").await.unwrap();
    until(&cluster, "pvc-1", "VolumeLost").await;
    cluster.lvm.add_volume(VG, "u1", FakeVolume::thick(GIB));
    let _second = Running::start(&cluster);
    until(&cluster, "pvc-1", "VolumeReady").await;
}

#[tokio::test]
async fn a_volume_group_that_is_not_there_says_nothing_of_its_volumes() {
    let cluster = Cluster::with(TWO_CLASSES).await;
    cluster.api.apply_json(fresh("pvc-1").build());
    cluster.api.apply_json(fresh("pvc-2").uid("u2").class("hdd").build());
    let running = Running::start(&cluster);
    for name in ["pvc-1", "pvc-2"] {
        until(&cluster, name, "VolumeReady").await;
    }
    cluster.lvm.remove_group(VG);
    cluster.lvm.remove_volume("slow", "u2");
    running.send_message();
    // Both classes are checked when the second one is reported
    until(&cluster, "pvc-2", "VolumeLost").await;
    assert_eq!(until(&cluster, "pvc-1", "VolumeReady").await["status"], "True");
}

#[tokio::test]
async fn a_volume_that_is_being_deleted_is_not_lost() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").finalizer("example.com/keep").build());
    cluster.api.apply_json(fresh("pvc-2").uid("u2").build());
    let running = Running::start(&cluster);
    for name in ["pvc-1", "pvc-2"] {
        until(&cluster, name, "VolumeReady").await;
    }
    cluster.api.delete(LV, "", "pvc-1");
    cluster.lvm.remove_volume(VG, "u2");
    running.send_message();
    until(&cluster, "pvc-2", "VolumeLost").await;
    assert_eq!((running.lost().as_str(), cluster.api.count("create", EVENTS)), ("1", 1));
}

#[tokio::test]
async fn orphaned_and_inactive_lvs_are_counted_in_metrics() {
    const KNOWN: &str = "0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a";
    const ORPHAN: &str = "7c1d2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a";
    let cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").uid(KNOWN).build());
    // A volume of another program, as its name shows
    cluster.lvm.add_volume(VG, "theirs", FakeVolume::thick(GIB));
    let running = Running::start(&cluster);
    until(&cluster, "pvc-1", "VolumeReady").await;
    let activate = |active| cluster.lvm.edit_volume(VG, KNOWN, |volume| volume.active = active);
    activate(false);
    cluster.lvm.add_volume(VG, ORPHAN, FakeVolume::thick(GIB));
    running.until_gauge("orphaned", "1").await;
    assert_eq!((running.gauge("inactive").as_str(), running.lost().as_str()), ("1", "0"));
    activate(true);
    cluster.lvm.remove_volume(VG, ORPHAN);
    running.until_gauge("orphaned", "0").await;
    assert_eq!(running.gauge("inactive"), "0");
}

#[tokio::test]
async fn orphaned_volumes_are_counted_in_classes_without_objects() {
    let cluster = Cluster::with(TWO_CLASSES).await;
    cluster.lvm.add_volume("slow", "7c1d2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a", FakeVolume::thick(GIB));
    let running = Running::start(&cluster);
    let class = |name: &str| DeviceClass { name: name.to_owned(), group_bytes: GIB, thin_pool: None, free_bytes: GIB };
    let classes = DeviceClasses { is_connected: true, classes: vec![class("ssd"), class("hdd")], default_class: None };
    running.device_classes.send_replace(classes);
    let counted = async {
        while running.gauge("orphaned") != "1" {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), counted).await.unwrap();
}
