use rstest::rstest;
use serde_json::{Value, json};
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::{logical_volume, node};

use super::super::tests::harness::{CLEANUP, DEFAULTS, Harness};

const LVS: &str = "logicalvolumes.topolvm.io";
/// The clock of the tests stands at the midnight after.
const A_DAY_AGO: &str = "2026-01-01T00:00:00Z";
const LESS_THAN_A_DAY_AGO: &str = "2026-01-01T00:00:01Z";

/// A server with a volume of node `n1`, which is not there, deleted at this time.
fn server(deleted_at: Option<&str>) -> ApiServer {
    let server = ApiServer::new();
    let volume = logical_volume("pvc-1").uid("u1").finalizer("topolvm.io/logicalvolume").ready("u1", "1Gi").build();
    let mut volume = serde_json::to_value(volume).unwrap();
    volume["metadata"]["deletionTimestamp"] = json!(deleted_at);
    server.apply_json(volume);
    server
}

fn persistent_volume(policy: &str, phase: &str, driver: &str, handle: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "by-any-name"},
        "spec": {"persistentVolumeReclaimPolicy": policy, "csi": {"driver": driver, "volumeHandle": handle}},
        "status": {"phase": phase},
    })
}

fn events(harness: &Harness) -> Vec<String> {
    harness.events().into_iter().map(|(reason, _)| reason).collect()
}

#[tokio::test(start_paused = true)]
async fn stale_volume_of_a_deleted_node_loses_its_finalizer() {
    let server = server(Some(A_DAY_AGO));
    let harness = Harness::start(&server, DEFAULTS);
    harness.gone(LVS, "", "pvc-1").await;
    harness.settle().await;
    assert_eq!(events(&harness), ["StaleVolumeForgotten"]);
    harness.end().await;
}

#[rstest]
#[case::not_deleted(None)]
#[case::not_long_ago(Some(LESS_THAN_A_DAY_AGO))]
#[tokio::test(start_paused = true)]
async fn a_volume_that_is_not_stale_stays_though_its_node_is_gone(#[case] deleted_at: Option<&str>) {
    let server = server(deleted_at);
    let harness = Harness::start(&server, DEFAULTS);
    tokio::time::sleep(CLEANUP.cleanup_interval * 3).await;
    assert!(harness.has(LVS, "", "pvc-1"));
    assert_eq!(server.count("get", LVS), 0);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn stale_volume_of_an_existing_node_is_kept_with_an_event() {
    let server = server(Some(A_DAY_AGO));
    server.apply_json(node("n1").build());
    let harness = Harness::start(&server, DEFAULTS);
    server.wait_for_requests("create", "events", 1).await;
    harness.settle().await;
    assert!(harness.has(LVS, "", "pvc-1"));
    assert_eq!(events(&harness), ["StaleVolume"]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn stale_volume_event_is_repeated_for_another_reason() {
    let server = server(Some(A_DAY_AGO));
    server.apply_json(node("n1").build());
    let harness = Harness::start(&server, DEFAULTS);
    server.wait_for_requests("create", "events", 1).await;
    server.apply_json(persistent_volume("Delete", "Bound", "topolvm.io", "u1"));
    server.delete("nodes", "", "n1");
    server.wait_for_requests("create", "events", 2).await;
    harness.settle().await;
    let events = server.list_json("events.events.k8s.io");
    let count = |text: &str| events.iter().filter(|event| event["note"].as_str().unwrap().contains(text)).count();
    assert_eq!((count("topolvm-node runs on Node n1"), count("PersistentVolume by-any-name still refers")), (1, 1));
    for event in events {
        let what = ["type", "reason", "reportingController"].map(|key| event[key].clone());
        assert_eq!(json!(what), json!(["Warning", "StaleVolume", "topolvm-controller"]));
        let regarding = &event["regarding"];
        assert_eq!(["kind", "name", "uid"].map(|key| &regarding[key]), ["LogicalVolume", "pvc-1", "u1"]);
    }
    harness.end().await;
}

#[rstest]
#[case::in_use("Delete", "Bound")]
#[case::about_to_be_used("Delete", "Available")]
#[case::kept_by_its_policy("Retain", "Released")]
#[tokio::test(start_paused = true)]
async fn a_volume_that_a_persistent_volume_refers_to_stays(#[case] policy: &str, #[case] phase: &str) {
    let server = server(Some(A_DAY_AGO));
    server.apply_json(persistent_volume(policy, phase, "topolvm.io", "u1"));
    let harness = Harness::start(&server, DEFAULTS);
    server.wait_for_requests("create", "events", 1).await;
    harness.settle().await;
    assert!(harness.has(LVS, "", "pvc-1"));
    assert_eq!(events(&harness), ["StaleVolume"]);
    harness.end().await;
}

#[rstest]
#[case::waits_for_this("Delete", "Released", "topolvm.io", "u1")]
#[case::failed_to_wait("Delete", "Failed", "topolvm.io", "u1")]
#[case::of_another_volume("Retain", "Bound", "topolvm.io", "u2")]
#[case::of_another_driver("Retain", "Bound", "ebs.example", "u1")]
#[tokio::test(start_paused = true)]
async fn stale_volume_ignores_other_or_released_persistent_volumes(
    #[case] policy: &str,
    #[case] phase: &str,
    #[case] driver: &str,
    #[case] handle: &str,
) {
    let server = server(Some(A_DAY_AGO));
    server.apply_json(persistent_volume(policy, phase, driver, handle));
    let harness = Harness::start(&server, DEFAULTS);
    tokio::time::sleep(CLEANUP.cleanup_interval * 3).await;
    assert!(!harness.has(LVS, "", "pvc-1"), "{:?}", server.get_json(LVS, "", "pvc-1"));
    assert_eq!(events(&harness), ["StaleVolumeForgotten"]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn an_object_of_the_same_name_made_since_is_not_touched() {
    let server = server(Some(A_DAY_AGO));
    server.before_next("patch", LVS, |server| {
        server.edit(LVS, "", "pvc-1", |volume| volume["metadata"]["finalizers"] = json!([]));
        server.apply_json(logical_volume("pvc-1").uid("u2").finalizer("topolvm.io/logicalvolume").build());
    });
    let harness = Harness::start(&server, DEFAULTS);
    tokio::time::sleep(CLEANUP.cleanup_interval * 3).await;
    let volume = server.get_json(LVS, "", "pvc-1").unwrap();
    assert_eq!(volume["metadata"]["uid"], json!("u2"));
    assert_eq!(volume["metadata"]["finalizers"], json!(["topolvm.io/logicalvolume"]));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn what_failed_is_retried_at_the_next_search() {
    let server = server(Some(A_DAY_AGO));
    server.fail_next("get", "nodes", 1, 500);
    let harness = Harness::start(&server, DEFAULTS);
    harness.settle().await;
    assert!(harness.has(LVS, "", "pvc-1"), "that the Node is gone was not said");
    harness.gone(LVS, "", "pvc-1").await;
    harness.end().await;
}
