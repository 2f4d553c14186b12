use kube::Api;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use topolvm_api::LogicalVolume;
use topolvm_doctor::{Facts, Mode, examine, examine_only};
use topolvm_kube::{LogicalVolumeWriter, watch_all};
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::storage_class;

use super::condition::CONFIG_MAP;
use super::*;

const INTERVAL: Duration = Duration::from_mins(5);

/// The controller over a fake API server.
struct Harness {
    server: ApiServer,
    tasks: Tasks,
    shutdown: CancellationToken,
    registry: Registry,
}

impl Harness {
    /// Starts the controller with this interval.
    fn start(server: &ApiServer, interval: Duration) -> Self {
        let shutdown = CancellationToken::new();
        let tasks = Tasks::new(shutdown.clone());
        let (flavor, client) = (ApiFlavor::TopoLvm, server.client());
        let mut registry = Registry::default();
        let mut volumes = LogicalVolumeWriter::of_cluster();
        let sources = DoctorSources {
            client: client.clone(),
            flavor,
            volumes: volumes.as_reader(),
            extender: None,
            events: EventPublisher::new(client.clone(), "tester", "me".to_owned()),
            metrics: ReconcileMetrics::register(&mut registry),
            now: || "2026-01-02T00:00:00Z".parse().unwrap(),
        };
        let context = DoctorContext::new("system".to_owned(), "me".to_owned(), Mode::Capacity, false, interval);
        let doctor = Doctor::new(sources, context.register(&mut registry));
        let all = Api::<LogicalVolume>::all_with(client, &flavor);
        let apply = move |event| drop(volumes.apply(event));
        tasks.spawn("volumes", watch_all("LogicalVolumes", all, shutdown.clone(), apply));
        let end = shutdown.clone();
        tasks.spawn("doctor", async move {
            end.run_until_cancelled(doctor.run()).await;
            Ok(())
        });
        Self { server: server.clone(), tasks, shutdown, registry }
    }

    /// Waits until nothing is left to do that does not wait for the clock: under tokio's paused time a sleep ends when
    /// all tasks are idle.
    async fn settle(&self) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    /// Returns reason and object of all Events.
    fn events(&self) -> Vec<(String, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let events = self.server.list_json("events.events.k8s.io");
        events.iter().map(|event| (text(&event["reason"]), text(&event["regarding"]["name"]))).collect()
    }

    /// Returns the metrics page.
    fn metrics(&self) -> String {
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &self.registry).unwrap();
        page
    }

    async fn end(self) {
        self.shutdown.cancel();
        self.tasks.wait().await.unwrap();
    }
}

/// A node with the device class `ssd`, and without a default class.
fn create_node(server: &ApiServer) {
    server.apply_json(json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": "n1", "annotations": {"capacity.topolvm.io/ssd": "5", "capacity.topolvm.io/00default": "0"},
            "finalizers": ["topolvm.io/node"], "labels": {"topology.topolvm.io/node": "n1"},
        },
    }));
    server.apply_json(json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": "n1"},
        "spec": {"drivers": [{"name": "topolvm.io", "nodeID": "n1"}]},
    }));
}

/// Waits until the condition has this status and these words in its message, and returns the ConfigMap's data.
async fn wait_for(server: &ApiServer, status: &str, words: &str) -> Value {
    let is_it = |map: Option<&Value>| {
        let data = &map?["data"];
        let says = data["message"].as_str()?.contains(words);
        (data["status"] == status && says).then(|| data.clone())
    };
    server.until("configmaps", "system", CONFIG_MAP, is_it).await
}

#[tokio::test(start_paused = true)]
async fn doctor_fault_sets_condition_metric_and_event_until_fixed() {
    let server = ApiServer::new();
    create_node(&server);
    server.apply_json(storage_class("fast").build());
    let harness = Harness::start(&server, INTERVAL);
    let data = wait_for(&server, "False", "failed: storage-classes; warnings: none; unknown: none").await;
    let findings = data["findings"].as_str().unwrap();
    assert!(findings.contains("fail storage-classes: StorageClass fast names no device class"), "{findings}");
    harness.settle().await;
    assert!(harness.metrics().contains(r#"topolvm_doctor_findings{check="storage-classes",severity="fail"} 1"#));
    assert!(harness.events().contains(&("CheckFailed".to_owned(), CONFIG_MAP.to_owned())));

    server
        .edit("nodes", "", "n1", |node| node["metadata"]["annotations"]["capacity.topolvm.io/00default"] = json!("5"));
    let data = wait_for(&server, "True", "failed: none; warnings: none; unknown: none").await;
    assert_eq!((&data["findings"], &data["type"]), (&json!(""), &json!("Healthy")));
    harness.settle().await;
    assert!(harness.metrics().contains(r#"topolvm_doctor_findings{check="storage-classes",severity="fail"} 0"#));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_while_nothing_changes() {
    let server = ApiServer::new();
    create_node(&server);
    server.apply_json(storage_class("fast").device_class("ssd").build());
    let harness = Harness::start(&server, INTERVAL);
    wait_for(&server, "True", "failed: none").await;
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_eq!((server.count("create", "configmaps"), server.count("patch", "configmaps")), (1, 0));
    assert!(server.count("get", "configmaps") >= 12);
    assert_eq!(harness.events(), []);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn what_may_not_be_read_is_unknown_and_other_checks_go_on() {
    let server = ApiServer::new();
    create_node(&server);
    server.apply_json(storage_class("fast").build());
    server.fail_next("list", "csinodes", 1, 403);
    let harness = Harness::start(&server, INTERVAL);
    let data = wait_for(&server, "False", "failed: storage-classes; warnings: none; unknown: node-agents").await;
    assert!(data["findings"].as_str().unwrap().contains("you may not list csinodes"), "{data}");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_report_of_a_run_that_was_cut_short_is_none() {
    let server = ApiServer::new();
    create_node(&server);
    server.apply_json(storage_class("fast").device_class("ssd").build());
    server.fail_next("list", "nodes", 3, 500);
    let harness = Harness::start(&server, INTERVAL);
    wait_for(&server, "True", "failed: none").await;
    assert!(!harness.metrics().contains("severity=\"unknown\"} 1"));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn an_interval_of_zero_turns_the_checks_off() {
    let server = ApiServer::new();
    create_node(&server);
    let harness = Harness::start(&server, Duration::ZERO);
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert_eq!((server.count("list", "csinodes"), server.count("get", "configmaps")), (0, 0));
    harness.end().await;
}

#[test]
fn the_checks_are_those_of_the_plugin() {
    let facts = Facts::empty(ApiFlavor::TopoLvm, "system", Timestamp::UNIX_EPOCH);
    let all: Vec<_> = examine(&facts).checks.iter().map(|check| check.name).collect();
    assert!(CHECKS.iter().all(|name| all.contains(name)), "{all:?}");
    assert_eq!(examine_only(&facts, &CHECKS).checks.len(), CHECKS.len());
}
