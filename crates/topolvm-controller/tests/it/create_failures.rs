//! CreateVolume when the node, the API server or another client interferes.

use rstest::rstest;
use serde_json::json;
use tonic::Code;
use topolvm_testkit::api_server::Failure;
use topolvm_testkit::fixtures::logical_volume;

use crate::agent::Agent;
use crate::harness::{GIB, Harness, LVS, create, on_nodes, refusal, sized, volume, with_parameter};

#[tokio::test(start_paused = true)]
async fn a_node_that_cannot_passes_its_code_on_and_nothing_is_left() {
    let harness = Harness::new().await;
    harness.start(&Agent::with_free(GIB / 2));
    let (code, message) = refusal(harness.create(on_nodes(volume("pvc-1"), &["n1"])).await);
    assert_eq!(code, Code::ResourceExhausted);
    assert!(message.contains("node n1") && message.contains("no room"), "{message}");
    harness.api.until(LVS, "", "pvc-1", |object| object.is_none().then_some(())).await;
}

#[rstest]
#[case::the_volume_group_is_missing(9)]
#[case::the_class_is_missing_says_topolvm(5)]
#[tokio::test(start_paused = true)]
async fn volume_creation_without_group_or_class_is_rescheduled(#[case] code: i32) {
    let harness = Harness::new().await;
    let creating = harness.beside(create(harness.csi.clone(), on_nodes(volume("pvc-1"), &["n1"])));
    harness.api.until(LVS, "", "pvc-1", |object| object.map(drop)).await;
    harness.api.edit(LVS, "", "pvc-1", |volume| {
        volume["metadata"]["finalizers"] = json!([]);
        volume["status"] = json!({"code": code, "message": "volume group vg does not exist"});
    });
    let (code, message) = refusal(creating.await.unwrap());
    assert_eq!(code, Code::ResourceExhausted);
    assert!(message.contains("node n1") && message.contains("volume group vg"), "{message}");
    assert!(harness.object("pvc-1").is_null());
}

#[tokio::test(start_paused = true)]
async fn a_failed_object_that_was_left_behind_is_replaced() {
    let harness = Harness::with_agent().await;
    harness.api.apply_json(
        logical_volume("pvc-1").sized("5Gi").finalizer("topolvm.io/logicalvolume").failed(8, "no room").build(),
    );
    let volume = harness.create(on_nodes(volume("pvc-1"), &["n1"])).await.unwrap();
    assert_eq!(volume.capacity_bytes, 1 << 30);
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_cannot_be_cleaned_up_is_not_final() {
    let harness = Harness::new().await;
    harness.start(&Agent::with_free(0));
    harness.api.fail_next("delete", LVS, 1, 500);
    assert_eq!(refusal(harness.create(on_nodes(volume("pvc-1"), &["n1"])).await).0, Code::Unavailable);
    assert_eq!(harness.object("pvc-1")["status"]["code"], 8);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_succeeds_after_all_has_made_the_volume() {
    let harness = Harness::new().await;
    harness.api.before_next("delete", LVS, |api| {
        api.edit(LVS, "", "pvc-1", |volume| volume["status"] = json!({"volumeID": "u-1", "currentSize": "1Gi"}));
    });
    let creating = harness.beside(create(harness.csi.clone(), on_nodes(volume("pvc-1"), &["n1"])));
    harness.api.until(LVS, "", "pvc-1", |object| object.map(drop)).await;
    harness.api.edit(LVS, "", "pvc-1", |volume| volume["status"] = json!({"code": 14, "message": "lvmd is away"}));
    assert_eq!(creating.await.unwrap().unwrap().volume_id, "u-1");
}

#[tokio::test(start_paused = true)]
async fn a_silent_node_is_named_and_the_next_call_goes_on_waiting() {
    let harness = Harness::new().await;
    let start = tokio::time::Instant::now();
    let (code, message) = refusal(harness.create(on_nodes(volume("pvc-1"), &["n1"])).await);
    assert_eq!(code, Code::DeadlineExceeded);
    assert!(message.contains("agent of node n1 has not created") && message.contains("topolvm-node runs"), "{message}");
    assert!(start.elapsed().as_millis() < 10_000);

    let uid = harness.object("pvc-1")["metadata"]["uid"].clone();
    harness.start(&Agent::with_free(GIB));
    assert_eq!(harness.create(on_nodes(volume("pvc-1"), &["n1"])).await.unwrap().volume_id, uid);
}

#[tokio::test(start_paused = true)]
async fn object_deleted_meanwhile_is_no_final_error() {
    let harness = Harness::new().await;
    let creating = harness.beside(create(harness.csi.clone(), on_nodes(volume("pvc-1"), &["n1"])));
    harness.api.until(LVS, "", "pvc-1", |object| object.map(drop)).await;
    harness.api.delete(LVS, "", "pvc-1");
    assert_eq!(refusal(creating.await.unwrap()).0, Code::Aborted);
}

#[tokio::test(start_paused = true)]
async fn no_space_anywhere_lets_the_scheduler_decide_again() {
    let harness = Harness::new().await;
    let (code, message) = refusal(harness.create(sized(volume("pvc-1"), 21 * GIB, 0)).await);
    assert_eq!(code, Code::ResourceExhausted);
    assert!(message.contains("node n2 has the most"), "{message}");
    let unknown = with_parameter(volume("pvc-1"), "topolvm.io/device-class", "tape");
    let (code, message) = refusal(harness.create(unknown).await);
    assert_eq!(code, Code::ResourceExhausted);
    assert!(message.contains("no node has device class \"tape\""), "{message}");
    assert!(harness.api.list_json(LVS).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_hangs_does_not_hide_a_volume_that_was_made() {
    let harness = Harness::new().await;
    harness.api.inject("watch", LVS, 9, Failure::Hang);
    harness.api.close_watches();
    harness.start(&Agent::with_free(GIB));
    let volume = harness.create(on_nodes(volume("pvc-1"), &["n1"])).await.unwrap();
    assert_eq!(volume.volume_id, harness.object("pvc-1")["metadata"]["uid"]);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_comes_back_is_used_again() {
    let harness = Harness::with_agent().await;
    harness.api.disconnect();
    assert_eq!(refusal(harness.create(on_nodes(volume("pvc-1"), &["n1"])).await).0, Code::Unavailable);
    harness.api.reconnect();
    harness.api.expire();
    let start = tokio::time::Instant::now();
    harness.create(on_nodes(volume("pvc-1"), &["n1"])).await.unwrap();
    assert!(start.elapsed().as_secs() <= 6, "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_never_answers_is_named() {
    let harness = Harness::new().await;
    harness.api.inject("create", LVS, 1, Failure::Hang);
    let (code, message) = refusal(harness.create(on_nodes(volume("pvc-1"), &["n1"])).await);
    assert_eq!(code, Code::DeadlineExceeded);
    assert!(message.contains("API server did not answer in time"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn calls_that_wait_end_when_the_controller_stops() {
    let harness = Harness::new().await;
    let creating = harness.beside(create(harness.csi.clone(), on_nodes(volume("pvc-1"), &["n1"])));
    harness.api.until(LVS, "", "pvc-1", |object| object.map(drop)).await;
    let start = tokio::time::Instant::now();
    harness.shutdown.cancel();
    assert_eq!(refusal(creating.await.unwrap()).0, Code::Unavailable);
    assert_eq!(start.elapsed().as_secs(), 0);
}
