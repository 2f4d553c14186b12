//! `/pod/mutate` where pods get the resource only while kube-scheduler is proven to call the extender.

use serde_json::{Value, json};
use topolvm_testkit::fixtures::{claim, creation_review, pod};

use crate::harness::Harness;

const EVENTS: &str = "events.events.k8s.io";
const REASON: &str = "kube-scheduler does not call topolvm-scheduler: 1 Insufficient topolvm.io/capacity";

async fn harness() -> Harness {
    let harness = Harness::with_probe().await;
    harness.api.apply_json(claim("data").class("topolvm").build());
    harness
}

/// Writes the outcome of the probe, as the leader does, and waits until pods are treated accordingly.
async fn write_outcome(harness: &Harness, proven: &str) {
    harness.api.apply_json(json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "topolvm-extender-probe", "namespace": "topolvm-system"},
        "data": {"extender-proven": proven, "reason": REASON},
    }));
    while has_resource(&ask(harness, &user(), true).await) != (proven == "true") {
        tokio::task::yield_now().await;
    }
}

fn user() -> Value {
    json!(pod("user").claim("data").build())
}

fn owner(name: &str, controller: bool) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": name, "controller": controller,
    })
}

/// A pod of this ReplicaSet.
fn owned(replica_set: &str) -> Value {
    let mut pod = user();
    pod["metadata"]["ownerReferences"] = json!([owner("no-controller", false), owner(replica_set, true)]);
    pod
}

/// The patch for a new pod.
async fn ask(harness: &Harness, pod: &Value, is_dry_run: bool) -> Value {
    let mut review = creation_review("pods", pod);
    review["request"]["dryRun"] = json!(is_dry_run);
    let answer = harness.ask("/pod/mutate", &review).await;
    let patch: k8s_openapi::ByteString = serde_json::from_value(answer["patch"].clone()).unwrap();
    serde_json::from_slice(&patch.0).unwrap()
}

fn has_resource(patch: &Value) -> bool {
    patch.to_string().contains("/spec/containers/0/resources")
}

/// Waits for this number of Events, and returns kind and name of the objects that they are about.
async fn events(harness: &Harness, number: usize) -> Vec<(Value, Value)> {
    harness.api.wait_for_requests("create", EVENTS, number).await;
    let about = |event: &Value| (event["regarding"]["kind"].clone(), event["regarding"]["name"].clone());
    harness.api.list_json(EVENTS).iter().map(about).collect()
}

#[tokio::test]
async fn pod_webhook_adds_the_resource_only_with_a_proven_extender() {
    let harness = harness().await;
    let annotations = json!([{
        "op": "add", "path": "/metadata/annotations", "value": {"capacity.topolvm.io/00default": "1073741824"},
    }]);
    assert_eq!(ask(&harness, &user(), false).await, annotations);
    write_outcome(&harness, "true").await;
    assert!(has_resource(&ask(&harness, &user(), false).await));
    write_outcome(&harness, "false").await;
    assert_eq!(ask(&harness, &user(), false).await, annotations);
}

#[tokio::test]
async fn pod_owner_gets_one_event_if_the_resource_is_not_added() {
    let harness = harness().await;
    write_outcome(&harness, "false").await;
    for pod in [owned("web-1"), owned("web-1"), user(), user(), owned("web-2")] {
        ask(&harness, &pod, false).await;
    }
    let mut about = events(&harness, 3).await;
    about.sort_by_key(|(_, name)| name.to_string());
    let expected = [("Namespace", "default"), ("ReplicaSet", "web-1"), ("ReplicaSet", "web-2")];
    assert_eq!(about, expected.map(|(kind, name)| (json!(kind), json!(name))));
    for event in harness.api.list_json(EVENTS) {
        let note = event["note"].as_str().unwrap();
        assert!(note.contains(REASON) && note.contains("scheduler-config/"), "{note}");
        assert_eq!((&event["metadata"]["namespace"], &event["type"]), (&json!("default"), &json!("Warning")));
    }
}

#[tokio::test]
async fn a_dry_run_leaves_no_event() {
    let harness = harness().await;
    write_outcome(&harness, "false").await;
    ask(&harness, &owned("tried"), true).await;
    ask(&harness, &owned("real"), false).await;
    assert_eq!(events(&harness, 1).await, [(json!("ReplicaSet"), json!("real"))]);
}

#[tokio::test]
async fn a_pod_whose_volume_is_bound_needs_no_resource_and_no_event() {
    let harness = harness().await;
    harness.api.apply_json(claim("bound").class("topolvm").bound_to("pvc-1").build());
    assert_eq!(harness.pod(pod("fixed").claim("bound").build()).await, Value::Null);
    ask(&harness, &owned("real"), false).await;
    assert_eq!(events(&harness, 1).await, [(json!("ReplicaSet"), json!("real"))]);
}
