//! Requests with the names of nodes alone, as kube-scheduler sends them with `nodeCacheCapable: true`.

use axum::Router;
use http::StatusCode;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use topolvm_api::ApiFlavor;
use topolvm_kube::{CredentialSource, Credentials};
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_scheduler::{Config, Metrics, NodeCache, Watches, router};
use topolvm_testkit::{ApiServer, fixtures};

use crate::support::{answer_of_router, kept_and_refused, node, pod, post_to_router, request};

/// An extender that watches the Nodes of a fake API server.
struct Extender {
    api: ApiServer,
    router: Router,
}

impl Extender {
    fn start(api: ApiServer) -> Self {
        let shutdown = CancellationToken::new();
        let (client, credentials) = Credentials::observe(api.client(), CredentialSource::Kubeconfig);
        let (nodes, task) = NodeCache::watch(client, ApiFlavor::TopoLvm, shutdown.clone());
        Tasks::new(shutdown).spawn("watch of Nodes", task);
        let metrics = Metrics::register(&mut Registry::default());
        Self {
            api,
            router: router(
                ApiFlavor::TopoLvm,
                &Config::default(),
                Watches { nodes: Some(nodes), reservations: None, credentials: Some(credentials) },
                metrics,
            ),
        }
    }

    /// Starts with Nodes `a` of 8 GiB, `b` of 2 GiB and `c` without the class, and waits until they are listed.
    async fn with_three_nodes() -> Self {
        let api = ApiServer::new();
        api.apply_json(fixtures::node("a").capacity("ssd", 8).build());
        api.apply_json(fixtures::node("b").capacity("ssd", 2).build());
        api.apply_json(fixtures::node("c").capacity("hdd", 2).build());
        let extender = Self::start(api);
        // The watch begins when all have been listed
        extender.api.wait_for_requests("watch", "nodes", 1).await;
        extender
    }

    async fn post(&self, path: &str, body: &Value) -> (StatusCode, String) {
        post_to_router(self.router.clone(), path, body.to_string()).await
    }

    async fn answer(&self, path: &str, body: &Value) -> Value {
        answer_of_router(&self.router, path, body).await
    }

    /// Asks until this is the status of readiness.
    async fn wait_until_ready(&self, expected: StatusCode) {
        let asking = async {
            while self.post("/readyz", &Value::Null).await.0 != expected {
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_mins(1), asking).await.unwrap();
    }

    /// Asks until the answer about a pod of 4 GiB is this.
    async fn wait_until(&self, names: &[&str], expected: &Value) {
        let mut last = Value::Null;
        let asking = async {
            while last != *expected {
                tokio::task::yield_now().await;
                last = self.answer("/predicate", &of_names(names)).await;
            }
        };
        let waited = tokio::time::timeout(std::time::Duration::from_secs(20), asking).await;
        assert!(waited.is_ok(), "the answer stays {last}");
    }
}

/// About a pod of 4 GiB, as kube-scheduler writes it.
fn of_names(names: &[&str]) -> Value {
    json!({"Pod": pod(&[("ssd", 4)]), "Nodes": null, "NodeNames": names})
}

#[tokio::test]
async fn names_are_answered_with_names_and_reasons() {
    let extender = Extender::with_three_nodes().await;
    assert_eq!(
        extender.answer("/predicate", &of_names(&["c", "a", "b", "d"])).await,
        kept_and_refused(
            &["a"],
            &json!({
                "b": "out of VG free space",
                "c": "no capacity annotation",
                "d": "topolvm-scheduler has not received this Node yet",
            })
        )
    );
    // Without the list kube-scheduler would take the Node objects, of which there are none
    assert_eq!(extender.answer("/predicate", &of_names(&[])).await, json!({"nodenames": []}));
    let any = json!({"pod": pod(&[]), "nodenames": ["b", "\u{61}"]});
    assert_eq!(extender.answer("/predicate", &any).await, json!({"nodenames": ["b", "a"]}));
}

/// kube-scheduler tries a pod again when a Node changes, and may ask before the watch has reported the change.
#[tokio::test(start_paused = true)]
async fn predicate_waits_for_a_pending_node_change_before_refusing() {
    let extender = Extender::with_three_nodes().await;
    let asked = of_names(&["b", "c"]);
    let (answer, ()) = tokio::join!(extender.answer("/predicate", &asked), async {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        extender.api.edit("nodes", "", "b", |node| {
            node["metadata"]["annotations"]["capacity.topolvm.io/ssd"] = json!("8589934592");
        });
    });
    assert_eq!(answer["nodenames"], json!(["b"]), "{answer}");
    // Not each of many pods without room is waited for
    let refused = of_names(&["c"]);
    let start = tokio::time::Instant::now();
    for _ in 0..20 {
        assert_eq!(extender.answer("/predicate", &refused).await["nodenames"], json!([]));
    }
    assert!(start.elapsed() <= std::time::Duration::from_millis(100), "{:?}", start.elapsed());
}

#[tokio::test]
async fn names_are_scored_by_the_nodes_of_the_watch() {
    let extender = Extender::with_three_nodes().await;
    assert_eq!(
        extender.answer("/prioritize", &of_names(&["a", "b", "c", "d"])).await,
        json!([
            {"host": "a", "score": 3}, {"host": "b", "score": 1}, {"host": "c", "score": 0}, {"host": "d", "score": 0},
        ])
    );
    let nothing = json!({"Pod": pod(&[]), "NodeNames": ["a"]});
    assert_eq!(extender.answer("/prioritize", &nothing).await, Value::Null);
}

#[tokio::test]
async fn node_changes_are_followed_and_whole_nodes_are_answered() {
    let extender = Extender::with_three_nodes().await;
    let names = ["a", "b", "d"];
    extender.api.edit("nodes", "", "a", |node| {
        node["metadata"]["annotations"]["capacity.topolvm.io/ssd"] = json!("1");
    });
    extender.api.apply_json(fixtures::node("d").capacity("ssd", 4).build());
    extender.api.delete("nodes", "", "b");
    let refused = json!({"a": "out of VG free space", "b": "topolvm-scheduler has not received this Node yet"});
    extender.wait_until(&names, &kept_and_refused(&["d"], &refused)).await;
    // The watch restarts with a list in which a Node is missing
    extender.api.disconnect();
    extender.api.delete("nodes", "", "a");
    extender.api.reconnect();
    extender.api.expire();
    let gone = "topolvm-scheduler has not received this Node yet";
    extender.wait_until(&names, &kept_and_refused(&["d"], &json!({"a": gone, "b": gone}))).await;

    let sent = node("b", &[("ssd", "4294967296")]);
    let answer = extender.answer("/predicate", &request(&pod(&[("ssd", 4)]), std::slice::from_ref(&sent))).await;
    assert_eq!(answer["nodes"]["items"], json!([sent]));
}

#[tokio::test]
async fn extender_is_not_ready_before_the_nodes_are_listed() {
    let api = ApiServer::new();
    api.fail_next("list", "nodes", usize::MAX, 403);
    let extender = Extender::start(api);
    let reason = "topolvm-scheduler has not listed the Nodes yet; check that the API server is reachable, and allow \
                  list and watch of Nodes";
    assert_eq!(extender.answer("/predicate", &of_names(&["a"])).await, json!({ "error": reason }));
    let unavailable = (StatusCode::SERVICE_UNAVAILABLE, reason.to_owned());
    assert_eq!(extender.post("/prioritize", &of_names(&["a"])).await, unavailable);
    assert_eq!(extender.post("/readyz", &Value::Null).await, unavailable);
    assert_eq!(extender.post("/status", &Value::Null).await, (StatusCode::OK, "ok".to_owned()));
    // Whole Nodes need no cache
    let answer = extender.answer("/predicate", &request(&pod(&[("ssd", 1)]), &[node("a", &[("ssd", "0")])])).await;
    assert_eq!(answer["failedNodes"], json!({"a": "out of VG free space"}));

    extender.api.clear_faults();
    extender.api.wait_for_requests("watch", "nodes", 1).await;
    assert_eq!(extender.post("/readyz", &Value::Null).await, (StatusCode::OK, "ok".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn extender_whose_credentials_are_rejected_is_not_ready() {
    let extender = Extender::with_three_nodes().await;
    extender.api.reject_credentials(true);
    extender.api.close_watches();
    extender.wait_until_ready(StatusCode::SERVICE_UNAVAILABLE).await;
    let (_, reason) = extender.post("/readyz", &Value::Null).await;
    assert!(reason.contains("401 Unauthorized"), "{reason}");
    extender.api.reject_credentials(false);
    extender.wait_until_ready(StatusCode::OK).await;
}
