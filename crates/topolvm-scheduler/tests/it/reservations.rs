//! Reservations of claims, LogicalVolumes and pods that kube-scheduler is about to bind.

use std::time::Duration;

use axum::Router;
use http::StatusCode;
use jiff::Timestamp;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::time::Instant;
use topolvm_api::ApiFlavor;
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_scheduler::{Config, Metrics, NodeCache, Reservations, Watches, router};
use topolvm_testkit::{ApiServer, fixtures};

use crate::support::{answer_of_router, kept_and_refused, node, pod, post_to_router, request};

const FULL: &str = "out of VG free space";

/// An extender that watches a fake API server with Nodes `a` and `b` of 8 GiB.
struct Extender {
    api: ApiServer,
    router: Router,
}

impl Extender {
    fn start(api: ApiServer) -> Self {
        api.apply_json(fixtures::node("a").capacity("ssd", 8).build());
        api.apply_json(fixtures::node("b").capacity("ssd", 8).build());
        api.apply_json(fixtures::storage_class("fast").device_class("ssd").build());
        let (shutdown, flavor) = (CancellationToken::new(), ApiFlavor::TopoLvm);
        let tasks = Tasks::new(shutdown.clone());
        let (nodes, task) = NodeCache::watch(api.client(), flavor, shutdown.clone());
        tasks.spawn("watch of Nodes", task);
        let reservations = Reservations::start(&api.client(), flavor, || Timestamp::UNIX_EPOCH, &tasks, &shutdown);
        let watches = Watches { nodes: Some(nodes), reservations: Some(reservations), credentials: None };
        let metrics = Metrics::register(&mut Registry::default());
        Self { api, router: router(flavor, &Config::default(), watches, metrics) }
    }

    /// Starts and waits until everything is listed.
    async fn ready() -> Self {
        let extender = Self::start(ApiServer::new());
        let waiting = async {
            while extender.post("/readyz", &Value::Null).await.0 != StatusCode::OK {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap();
        extender
    }

    async fn post(&self, path: &str, body: &Value) -> (StatusCode, String) {
        post_to_router(self.router.clone(), path, body.to_string()).await
    }

    async fn answer(&self, path: &str, body: &Value) -> Value {
        answer_of_router(&self.router, path, body).await
    }

    /// The scheduler's choice for the claim of a pod.
    fn select(&self, pod: &str, node: &str, size: &str) {
        self.api.apply_json(fixtures::claim(pod).class("fast").sized(size).selected_node(node).build());
    }

    /// Waits until the answer about a pod is this.
    async fn wait_until(&self, body: &Value, expected: &Value) {
        let waiting = async {
            while self.answer("/predicate", body).await != *expected {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap();
    }
}

/// A pod that wants so many GiB, with a claim of the same name.
fn pod_with_claim(name: &str, gib: u64) -> Value {
    let mut pod = pod(&[("ssd", gib)]);
    pod["metadata"]["name"] = json!(name);
    pod["metadata"]["uid"] = json!(name);
    pod["metadata"]["namespace"] = json!("default");
    pod["spec"] = json!({"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]});
    pod
}

/// The question which of both nodes have room.
fn of_both(pod: &Value) -> Value {
    json!({"Pod": pod, "NodeNames": ["a", "b"]})
}

#[tokio::test]
async fn what_a_claim_with_a_node_will_take_is_not_free_for_others() {
    let extender = Extender::ready().await;
    extender.select("one", "a", "6Gi");
    let two = of_both(&pod_with_claim("two", 4));
    extender.wait_until(&two, &kept_and_refused(&["b"], &json!({"a": FULL}))).await;
    assert_eq!(
        extender.answer("/prioritize", &two).await,
        json!([{"host": "a", "score": 1}, {"host": "b", "score": 3}])
    );
    let nodes = [node("a", &[("ssd", "8589934592")]), node("b", &[("ssd", "8589934592")])];
    let whole = extender.answer("/predicate", &request(&pod_with_claim("two", 4), &nodes)).await;
    assert_eq!(whole["failedNodes"], json!({"a": FULL}));
    // It does not stand in its own way when it is scheduled again; the second pod may be on its way to the other node
    let one = of_both(&pod_with_claim("one", 6));
    assert_eq!(extender.answer("/predicate", &one).await, kept_and_refused(&["a"], &json!({"b": FULL})));
}

#[tokio::test]
async fn outdated_node_capacity_in_a_request_is_not_used() {
    let extender = Extender::ready().await;
    let old = [node("a", &[("ssd", "8589934592")]), node("b", &[("ssd", "8589934592")])];
    let question = request(&pod_with_claim("two", 4), &old);
    assert_eq!(extender.answer("/predicate", &question).await["failedNodes"], Value::Null);
    // A volume was made meanwhile
    extender.api.apply_json(fixtures::node("a").capacity("ssd", 2).build());
    let waiting = async {
        while extender.answer("/predicate", &question).await["failedNodes"] != json!({"a": FULL}) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), waiting).await.unwrap();
    let scores = extender.answer("/prioritize", &question).await;
    assert_eq!(scores, json!([{"host": "a", "score": 1}, {"host": "b", "score": 3}]));
}

#[tokio::test(start_paused = true)]
async fn predicate_waits_until_new_node_capacity_is_cached() {
    let extender = Extender::ready().await;
    let started = Instant::now();
    let new = [node("a", &[("ssd", "17179869184")]), node("b", &[("ssd", "8589934592")])];
    let question = request(&pod_with_claim("two", 10), &new);
    let growth = async {
        tokio::task::yield_now().await;
        extender.api.apply_json(fixtures::node("a").capacity("ssd", 16).build());
    };
    let (answer, ()) = tokio::join!(extender.answer("/predicate", &question), growth);
    assert_eq!(answer["failedNodes"], json!({"b": FULL}));
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn pod_without_another_node_waits_for_the_binding_before_it() {
    let extender = Extender::ready().await;
    let one = extender.answer("/predicate", &of_both(&pod_with_claim("one", 5))).await;
    assert_eq!(one, json!({"nodenames": ["a", "b"]}));
    let started = Instant::now();
    let two = of_both(&pod_with_claim("two", 5));
    let binding = async {
        tokio::task::yield_now().await;
        extender.select("one", "a", "5Gi");
    };
    let (two, ()) = tokio::join!(extender.answer("/predicate", &two), binding);
    assert_eq!(two, kept_and_refused(&["b"], &json!({"a": FULL})));
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    // One that fits beside it does not wait
    let small = extender.answer("/predicate", &of_both(&pod_with_claim("small", 2))).await;
    assert_eq!(small, json!({"nodenames": ["a", "b"]}));
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_never_bound_holds_up_others_for_seconds_only() {
    let extender = Extender::ready().await;
    extender.answer("/predicate", &of_both(&pod_with_claim("one", 5))).await;
    let started = Instant::now();
    let two = of_both(&pod_with_claim("two", 5));
    let refused = kept_and_refused(&[], &json!({"a": FULL, "b": FULL}));
    assert_eq!(extender.answer("/predicate", &two).await, refused);
    assert_eq!(started.elapsed().as_secs(), 1);
    tokio::time::sleep(Duration::from_secs(9)).await;
    assert_eq!(extender.answer("/predicate", &two).await, json!({"nodenames": ["a", "b"]}));
}

#[tokio::test(start_paused = true)]
async fn extender_names_the_resources_that_are_not_listed_yet() {
    let api = ApiServer::new();
    api.fail_next("list", "persistentvolumeclaims", usize::MAX, 403);
    let extender = Extender::start(api);
    extender.api.wait_for_requests("watch", "nodes", 2).await;
    let reason = "topolvm-scheduler has not listed claims, LogicalVolumes and StorageClasses yet; check that the API \
                  server is reachable, and allow list and watch of them";
    let question = of_both(&pod_with_claim("one", 5));
    assert_eq!(extender.answer("/predicate", &question).await, json!({ "error": reason }));
    let unavailable = (StatusCode::SERVICE_UNAVAILABLE, reason.to_owned());
    assert_eq!(extender.post("/prioritize", &question).await, unavailable);
    assert_eq!(extender.post("/readyz", &Value::Null).await, unavailable);
}
