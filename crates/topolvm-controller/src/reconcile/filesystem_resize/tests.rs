use std::time::Duration;

use jiff::Timestamp;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};
use tokio::time::timeout;
use topolvm_api::{ApiFlavor, NodeSelection, SELECTED_NODE};
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_testkit::ApiServer;
use topolvm_testkit::api_server::Failure;
use topolvm_testkit::fixtures::logical_volume;

use super::super::pending_resize::RESIZE_PENDING;
use super::super::tests::harness::Harness;
use super::*;

const CLAIMS: &str = "persistentvolumeclaims";
/// Whole seconds, of the API server's or another machine's clock.
const SINCE: &str = "2026-01-01T00:00:05Z";

/// A little later within the same second.
fn now() -> Timestamp {
    "2026-01-01T00:00:05.3Z".parse().unwrap()
}

/// A claim that grows to this size: it waits for kubelet, or for nothing.
fn claim(size: &str, pending: bool) -> Value {
    let condition = json!([{"type": RESIZE_PENDING, "status": "True", "lastTransitionTime": SINCE}]);
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "namespace": "ns", "uid": "u", "annotations": {
            "volume.kubernetes.io/storage-provisioner": "topolvm.io", SELECTED_NODE: "n1"}},
        "spec": {"volumeName": "pvc-1", "resources": {"requests": {"storage": size}}},
        "status": {"conditions": if pending { condition } else { json!([]) }},
    })
}

fn pod(name: &str, claim: &str, requested_at: Option<&str>) -> Value {
    let annotations = requested_at.map(|time| json!({RESIZEFS_REQUESTED_AT: time}));
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "ns", "annotations": annotations},
        "spec": {
            "nodeName": "n1", "containers": [],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}],
        },
    })
}

struct Resizing {
    server: ApiServer,
    tasks: Tasks,
    shutdown: CancellationToken,
}

impl Resizing {
    fn start(server: &ApiServer) -> Self {
        let shutdown = CancellationToken::new();
        let tasks = Tasks::new(shutdown.clone());
        let controllers =
            Harness::controllers(server, ApiFlavor::TopoLvm, NodeSelection::default(), now, &tasks, &shutdown);
        tasks.spawn("controllers", controllers.run(shutdown.clone()));
        Self { server: server.clone(), tasks, shutdown }
    }

    /// Changes the claim, waits until the controller is idle, and counts the annotations of pods so far.
    async fn annotations_after(&self, claim: Value) -> usize {
        self.server.apply_json(claim);
        tokio::time::sleep(Duration::from_millis(1)).await;
        self.server.count("patch", "pods")
    }

    async fn end(self) {
        self.shutdown.cancel();
        self.tasks.wait().await.unwrap();
    }
}

fn requested_at(pod: &Value) -> Option<String> {
    pod["metadata"]["annotations"][RESIZEFS_REQUESTED_AT].as_str().map(str::to_owned)
}

#[tokio::test(start_paused = true)]
async fn pods_of_a_pending_claim_are_annotated() {
    let server = ApiServer::new();
    server.apply_json(pod("user", "data", None));
    // By a clock that is ahead, or for another growth within the same second
    server.apply_json(pod("annotated", "data", Some("2026-01-01T00:00:05.1Z")));
    server.apply_json(pod("other", "else", None));
    let resizing = Resizing::start(&server);
    assert_eq!(resizing.annotations_after(claim("2Gi", true)).await, 2);
    for name in ["user", "annotated"] {
        assert_eq!(requested_at(&server.get_json("pods", "ns", name).unwrap()), Some(now().to_string()), "{name}");
    }
    assert_eq!(requested_at(&server.get_json("pods", "ns", "other").unwrap()), None);
    resizing.end().await;
}

#[tokio::test(start_paused = true)]
async fn resize_annotation_is_set_once_for_each_requested_size() {
    let server = ApiServer::new();
    server.apply_json(pod("user", "data", None));
    let resizing = Resizing::start(&server);
    assert_eq!(resizing.annotations_after(claim("2Gi", true)).await, 1);
    let mut touched = claim("2Gi", true);
    touched["status"]["capacity"] = json!({"storage": "1Gi"});
    assert_eq!(resizing.annotations_after(touched).await, 1, "the same growth");
    assert_eq!(resizing.annotations_after(claim("3Gi", true)).await, 2, "it waits for more");
    assert_eq!(resizing.annotations_after(claim("3Gi", false)).await, 2, "kubelet has done it");
    assert_eq!(resizing.annotations_after(claim("4Gi", true)).await, 3, "a growth within the same second");
    resizing.server.delete(CLAIMS, "ns", "data");
    assert_eq!(resizing.annotations_after(claim("4Gi", true)).await, 4, "the claim was recreated");
    resizing.end().await;
}

/// Writes of kubelet's own attempts trigger no annotation, which would make it try again at once, forever.
#[tokio::test(start_paused = true)]
async fn resize_annotation_ignores_kubelet_failures_but_not_new_sizes() {
    let state = |state: &str, allocated: &str, requested: &str| {
        let mut claim = claim(requested, true);
        claim["status"]["allocatedResources"] = json!({"storage": allocated});
        claim["status"]["allocatedResourceStatuses"] = json!({"storage": state});
        claim
    };
    let server = ApiServer::new();
    server.apply_json(pod("user", "data", None));
    let resizing = Resizing::start(&server);
    assert_eq!(resizing.annotations_after(state("NodeResizePending", "2Gi", "2Gi")).await, 1);
    for attempt in ["NodeResizeInProgress", "NodeResizeInfeasible", "NodeResizeInProgress"] {
        assert_eq!(resizing.annotations_after(state(attempt, "2Gi", "2Gi")).await, 1, "{attempt}");
    }
    assert_eq!(resizing.annotations_after(state("NodeResizePending", "3Gi", "3Gi")).await, 2);
    // The volume itself has not grown to what was asked for just now
    assert_eq!(resizing.annotations_after(state("NodeResizePending", "3Gi", "4Gi")).await, 2);
    assert_eq!(resizing.annotations_after(state("ControllerResizeInProgress", "4Gi", "4Gi")).await, 2);
    assert_eq!(resizing.annotations_after(state("NodeResizePending", "4Gi", "4Gi")).await, 3);
    resizing.end().await;
}

/// As of a copy, which is made where its source is.
#[tokio::test(start_paused = true)]
async fn pods_to_resize_are_listed_on_the_node_of_the_volume() {
    let server = ApiServer::new();
    server.apply_json(logical_volume("pvc-1").on("n2").build());
    let mut elsewhere = pod("user", "data", None);
    elsewhere["spec"]["nodeName"] = json!("n2");
    server.apply_json(elsewhere);
    let resizing = Resizing::start(&server);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(resizing.annotations_after(claim("2Gi", true)).await, 1);
    resizing.end().await;
}

#[tokio::test]
async fn an_api_server_that_hangs_does_not_hold_up_the_end() {
    let server = ApiServer::new();
    server.inject("patch", "pods", 1, Failure::Hang);
    server.apply_json(pod("user", "data", None));
    let resizing = Resizing::start(&server);
    server.apply_json(claim("2Gi", true));
    server.wait_for_requests("patch", "pods", 1).await;
    timeout(Duration::from_secs(20), resizing.end()).await.expect("the end waits for the API server");
}

#[test]
fn resize_event_is_pending_or_settled_for_own_claims_only() {
    let of = |claim: &Value| {
        ResizeEvent::from_event(ApiFlavor::TopoLvm, &Event::Apply(serde_json::from_value(claim.clone()).unwrap()))
    };
    let mut foreign = claim("2Gi", true);
    foreign["metadata"]["annotations"]["volume.kubernetes.io/storage-provisioner"] = json!("ebs.example");
    assert_eq!(of(&foreign), None);
    assert_eq!(of(&claim("2Gi", false)), Some(ResizeEvent::Settled("u".to_owned())));
    let Some(ResizeEvent::Pending(pending)) = of(&claim("2Gi", true)) else { panic!("it waits") };
    assert_eq!((pending.claim.as_str(), pending.volume.as_deref()), ("data", Some("pvc-1")));
}

#[tokio::test(start_paused = true)]
async fn resize_annotation_that_failed_is_set_at_the_next_change() {
    let server = ApiServer::new();
    server.apply_json(pod("user", "data", None));
    server.fail_next("list", "pods", 1, 500);
    let resizing = Resizing::start(&server);
    assert_eq!(resizing.annotations_after(claim("2Gi", true)).await, 0);
    let mut again = claim("2Gi", true);
    again["status"]["capacity"] = json!({"storage": "1Gi"});
    assert_eq!(resizing.annotations_after(again).await, 1);
    resizing.end().await;
}
