//! Failures on demand, the log of requests, and waiting.

use std::time::Duration;

use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::json;
use topolvm_testkit::ApiServer;
use topolvm_testkit::api_server::{Failure, Kind};
use topolvm_testkit::fixtures::logical_volume;

use crate::support::{refusal, volumes};

#[tokio::test]
async fn next_requests_fail_as_injected_and_no_others() {
    let server = ApiServer::new();
    let api = volumes(&server);
    server.fail_next("create", "logicalvolumes", 2, 503);
    for _ in 0..2 {
        let refused = api.create(&PostParams::default(), &logical_volume("a").build()).await;
        assert_eq!(refusal(refused).0, 503);
    }
    api.list(&ListParams::default()).await.unwrap();
    api.create(&PostParams::default(), &logical_volume("a").build()).await.unwrap();
}

#[tokio::test]
async fn an_answer_can_be_lost_after_the_write() {
    let server = ApiServer::new();
    server.inject("create", "logicalvolumes", 1, Failure::LostAnswer);
    let lost = volumes(&server).create(&PostParams::default(), &logical_volume("a").build()).await;
    assert!(matches!(lost, Err(kube::Error::Service(_))));
    assert!(server.get_json("logicalvolumes", "", "a").is_some());
}

#[tokio::test(start_paused = true)]
async fn a_request_can_hang() {
    let server = ApiServer::new();
    server.inject("list", "*", 1, Failure::Hang);
    let api = volumes(&server);
    let params = ListParams::default();
    assert!(tokio::time::timeout(Duration::from_mins(10), api.list(&params)).await.is_err());
    api.list(&params).await.unwrap();
}

#[tokio::test]
async fn update_conflicts_with_a_faster_client() {
    let server = ApiServer::new();
    let api = volumes(&server);
    server.apply_json(logical_volume("a").build());
    let mut read = api.get("a").await.unwrap();
    server.before_next("update", "logicalvolumes", |server| {
        server.edit("logicalvolumes", "", "a", |volume| volume["spec"]["size"] = "5Gi".into());
    });
    read.spec.device_class = "ssd".to_owned();
    assert_eq!(refusal(api.replace("a", &PostParams::default(), &read).await).1, "Conflict");
}

#[tokio::test]
async fn a_disconnected_server_cannot_be_reached_until_it_is_back() {
    let server = ApiServer::new();
    let api = volumes(&server);
    server.disconnect();
    assert!(matches!(api.list(&ListParams::default()).await, Err(kube::Error::Service(_))));
    server.reconnect();
    api.list(&ListParams::default()).await.unwrap();
    assert_eq!(server.count("list", "logicalvolumes"), 1);
}

#[tokio::test]
async fn requests_are_logged_with_verb_path_and_parameters() {
    let server = ApiServer::new();
    let api = volumes(&server);
    drop(api.get("a").await);
    api.list(&ListParams::default().fields("spec.nodeName=n1")).await.unwrap();
    assert_eq!(
        server.requests(),
        [
            ("get", "/apis/topolvm.io/v1/logicalvolumes/a".to_owned()),
            ("list", "/apis/topolvm.io/v1/logicalvolumes?fieldSelector=spec.nodeName=n1".to_owned()),
        ]
    );
    assert_eq!(server.count("*", "logicalvolumes"), 2);
    server.clear_requests();
    assert_eq!(server.requests(), []);
}

#[tokio::test]
async fn a_test_can_wait_for_an_object_and_for_a_request() {
    let server = ApiServer::new();
    let api = volumes(&server);
    server.apply_json(logical_volume("a").build());
    let patch = Patch::Merge(json!({"status": {"volumeID": "u"}}));
    let params = PatchParams::default();
    let is_ready =
        server.until("logicalvolumes", "", "a", |volume| volume?["status"]["volumeID"].as_str().map(str::to_owned));
    let (id, (), patched) = tokio::join!(
        is_ready,
        server.wait_for_requests("patch", "logicalvolumes", 1),
        api.patch_status("a", &params, &patch)
    );
    patched.unwrap();
    assert_eq!(id, "u");
}

#[tokio::test]
async fn other_resources_can_be_served() {
    let server = ApiServer::new();
    server.serve(Kind::namespaced("example.com", "v1", "Widget", "widgets").with_status().selectable(&["spec.color"]));
    server.apply_json(json!({
        "apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w", "namespace": "ns"},
        "spec": {"color": "red"},
    }));
    let resource = kube::core::ApiResource {
        group: "example.com".to_owned(),
        version: "v1".to_owned(),
        api_version: "example.com/v1".to_owned(),
        kind: "Widget".to_owned(),
        plural: "widgets".to_owned(),
    };
    let api: kube::Api<kube::core::DynamicObject> = kube::Api::all_with(server.client(), &resource);
    let red = api.list(&ListParams::default().fields("spec.color=red")).await.unwrap();
    assert_eq!(red.items.len(), 1);
    let blue = api.list(&ListParams::default().fields("spec.color=blue")).await.unwrap();
    assert_eq!(blue.items.len(), 0);
}
