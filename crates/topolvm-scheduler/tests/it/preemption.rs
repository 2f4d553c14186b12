//! Questions of kube-scheduler which nodes are left for a preemption, with victims as Pod objects and as UIDs.

use axum::Router;
use http::StatusCode;
use jiff::Timestamp;
use prometheus_client::registry::Registry;
use serde_json::{Map, Value, json};
use topolvm_api::ApiFlavor;
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_scheduler::{Config, Metrics, NodeCache, Reservations, Watches, router};
use topolvm_testkit::{ApiServer, fixtures};

use crate::support::{answer, answer_of_router, pod, post};

/// The Nodes of the cluster, with the text of their annotation: 8 GiB, 2 GiB, and no number.
const NODES: [(&str, &str); 3] = [("a", "8589934592"), ("b", "2147483648"), ("odd", "foo")];

/// Starts an extender with a cache of [`NODES`] and of one without the class, and waits until they are listed.
async fn start(api: &ApiServer, has_reservations: bool) -> Router {
    for (name, free) in NODES {
        api.apply_json(annotated_node(name, free));
    }
    api.apply_json(fixtures::node("bare").build());
    api.apply_json(fixtures::storage_class("fast").device_class("ssd").build());
    let (shutdown, flavor) = (CancellationToken::new(), ApiFlavor::TopoLvm);
    let tasks = Tasks::new(shutdown.clone());
    let (nodes, task) = NodeCache::watch(api.client(), flavor, shutdown.clone());
    tasks.spawn("watch of Nodes", task);
    let start = || Reservations::start(&api.client(), flavor, || Timestamp::UNIX_EPOCH, &tasks, &shutdown);
    let watches = Watches { nodes: Some(nodes), reservations: has_reservations.then(start), credentials: None };
    let router = router(flavor, &Config::default(), watches, Metrics::register(&mut Registry::default()));
    let waiting = async {
        while crate::support::post_to_router(router.clone(), "/readyz", "").await.0 != StatusCode::OK {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), waiting).await.unwrap();
    router
}

fn annotated_node(name: &str, free: &str) -> Value {
    let mut node = serde_json::to_value(fixtures::node(name).build()).unwrap();
    node["metadata"]["annotations"] = json!({"capacity.topolvm.io/ssd": free});
    node
}

/// The question about a pod of so many GiB and victims as UIDs, one on each node.
fn of_uids(gib: u64, nodes: &[&str]) -> Value {
    let victims =
        nodes.iter().map(|node| ((*node).to_owned(), json!({"Pods": [{"UID": node}], "NumPDBViolations": 1})));
    let victims: Map<String, Value> = victims.collect();
    json!({"Pod": pod(&[("ssd", gib)]), "NodeNameToVictims": null, "NodeNameToMetaVictims": victims})
}

/// The question about a pod of so many GiB and victims as Pod objects on node `b`.
fn of_pods(gib: u64, victims: &[Value]) -> Value {
    let victims = json!({"b": {"Pods": victims, "NumPDBViolations": 0}});
    json!({"Pod": pod(&[("ssd", gib)]), "NodeNameToVictims": victims, "NodeNameToMetaVictims": null})
}

/// A victim with a volume, whose annotation says so many GiB.
fn victim(uid: &str, gib: u64, volume: &Value) -> Value {
    let mut victim = pod(&[("ssd", gib)]);
    victim["metadata"]["uid"] = json!(uid);
    victim["spec"] = json!({"volumes": [volume], "containers": []});
    victim
}

fn names(answer: &Value) -> Vec<&str> {
    answer["nodeNameToMetaVictims"].as_object().unwrap().keys().map(String::as_str).collect()
}

#[tokio::test]
async fn preemption_keeps_nodes_with_free_space_and_unknown_ones() {
    let router = start(&ApiServer::new(), false).await;
    let answer = answer_of_router(&router, "/preempt", &of_uids(4, &["a", "b", "bare", "odd", "new"])).await;
    let victims = |node: &str| json!({"pods": [{"uid": node}], "numPDBViolations": 1});
    assert_eq!(answer, json!({"nodeNameToMetaVictims": {"a": victims("a"), "new": victims("new")}}));
}

#[tokio::test]
async fn preemption_without_free_space_anywhere_has_no_candidates() {
    let router = start(&ApiServer::new(), false).await;
    let answer = answer_of_router(&router, "/preempt", &of_uids(9, &["a", "b"])).await;
    assert_eq!(answer, json!({"nodeNameToMetaVictims": {}}));
}

#[tokio::test]
async fn preemption_keeps_the_order_of_victims_of_a_node() {
    let router = start(&ApiServer::new(), false).await;
    let victims = ["z", "y", "x"].map(|uid| victim(uid, 0, &json!({"name": "v", "emptyDir": {}})));
    let answer = answer_of_router(&router, "/preempt", &of_pods(2, &victims)).await;
    let uids = json!([{"uid": "z"}, {"uid": "y"}, {"uid": "x"}]);
    assert_eq!(answer, json!({"nodeNameToMetaVictims": {"b": {"pods": uids, "numPDBViolations": 0}}}));
}

#[tokio::test]
async fn preemption_counts_ephemeral_volumes_of_victims_and_no_claims() {
    let router = start(&ApiServer::new(), false).await;
    let ephemeral = json!({"name": "v", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}});
    let claim = json!({"name": "v", "persistentVolumeClaim": {"claimName": "v"}});
    // 2 GiB are free on the node
    for (victims, gib, expected) in [
        (vec![victim("1", 2, &ephemeral)], 4, vec!["b"]),
        (vec![victim("1", 2, &ephemeral)], 5, vec![]),
        (vec![victim("1", 2, &ephemeral), victim("2", 1, &ephemeral)], 5, vec!["b"]),
        (vec![victim("1", 2, &claim)], 4, vec![]),
    ] {
        let answer = answer_of_router(&router, "/preempt", &of_pods(gib, &victims)).await;
        assert_eq!(names(&answer), expected, "{gib} GiB, {victims:?}");
    }
}

#[tokio::test]
async fn preemption_counts_reservations_of_other_pods() {
    let api = ApiServer::new();
    let router = start(&api, true).await;
    assert_eq!(names(&answer_of_router(&router, "/preempt", &of_uids(4, &["a"])).await), ["a"]);
    api.apply_json(fixtures::claim("one").class("fast").sized("6Gi").selected_node("a").build());
    let waiting = async {
        while !names(&answer_of_router(&router, "/preempt", &of_uids(4, &["a"])).await).is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(20), waiting).await.unwrap();
}

#[tokio::test]
async fn preemption_without_a_cache_of_nodes_keeps_every_node() {
    let kept = answer("/preempt", &of_uids(1 << 20, &["a", "b"])).await;
    assert_eq!(names(&kept), ["a", "b"]);
}

#[tokio::test]
async fn preemption_before_nodes_are_listed_keeps_every_node() {
    let api = ApiServer::new();
    api.fail_next("list", "nodes", usize::MAX, 403);
    let shutdown = CancellationToken::new();
    let (nodes, task) = NodeCache::watch(api.client(), ApiFlavor::TopoLvm, shutdown.clone());
    Tasks::new(shutdown).spawn("watch of Nodes", task);
    let watches = Watches { nodes: Some(nodes), ..Watches::default() };
    let metrics = Metrics::register(&mut Registry::default());
    let router = router(ApiFlavor::TopoLvm, &Config::default(), watches, metrics);
    assert_eq!(names(&answer_of_router(&router, "/preempt", &of_uids(1 << 20, &["a"])).await), ["a"]);
}

/// kube-scheduler tries a pod again when a Node changes, and may ask before the watch has reported the change.
#[tokio::test(start_paused = true)]
async fn preemption_waits_for_a_node_change_that_is_on_its_way() {
    let api = ApiServer::new();
    let router = start(&api, false).await;
    let question = of_uids(4, &["b"]);
    let (answer, ()) = tokio::join!(answer_of_router(&router, "/preempt", &question), async {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        api.apply_json(annotated_node("b", "8589934592"));
    });
    assert_eq!(names(&answer), ["b"]);
}

#[tokio::test]
async fn preemption_reads_lower_case_keys_too() {
    let victims = json!({"a": {"pods": [{"uid": "1"}], "numPDBViolations": 2}});
    let request = json!({"pod": pod(&[("ssd", 1)]), "nodeNameToMetaVictims": victims});
    assert_eq!(answer("/preempt", &request).await, json!({"nodeNameToMetaVictims": victims}));
}

#[tokio::test]
async fn preemption_requests_that_cannot_be_read_are_refused() {
    for body in ["", "{}", r#"{"Pod": {}}"#, r#"{"NodeNameToMetaVictims": {}}"#] {
        assert_eq!(post("/preempt", body).await, (StatusCode::BAD_REQUEST, "bad request".to_owned()), "{body}");
    }
}
