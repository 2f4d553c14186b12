//! The capacity of a node over a fake API server and a real lvmd behind a socket.

use std::path::PathBuf;

use kube::Client;
use lvmd_client::LvmdClient;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::mpsc;
use topolvm_api::ApiFlavor;
use topolvm_node::capacity::Capacity;
use topolvm_proto::lvmd::CreateLvRequest;
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::node;
use topolvm_testkit::lvm::{EXTENT, FakeLvm};

use crate::lvmd_process::{LvmdProcess, ONE_CLASS, TWO_CLASSES, VG};

const GIB: u64 = 1 << 30;

/// A node agent that only publishes its capacity: 10 GiB in each of two volume groups.
struct Agent {
    dir: TempDir,
    api: ApiServer,
    lvm: FakeLvm,
    lvmd_returns: mpsc::Receiver<()>,
    registry: Registry,
    tasks: Tasks,
    shutdown: CancellationToken,
}

impl Agent {
    fn start(api: ApiServer) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let lvm = FakeLvm::new().with_group(VG, 10 * GIB).with_group("slow", 10 * GIB);
        let shutdown = CancellationToken::new();
        let tasks = Tasks::new(shutdown.clone());
        let mut registry = Registry::default();
        let lvmd = LvmdClient::connect(&dir.path().join("lvmd.sock")).unwrap();
        let capacity = Capacity::new(ApiFlavor::TopoLvm, "n1".to_owned(), lvmd, &mut registry);
        let client: Client = api.client();
        Self { lvmd_returns: capacity.start(client, &tasks, &shutdown), dir, api, lvm, registry, tasks, shutdown }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("lvmd.sock")
    }

    async fn lvmd(&self, config: &str) -> LvmdProcess {
        LvmdProcess::start(&self.lvm, config).await.listen(&self.socket()).await
    }

    /// Waits until the capacity annotations are these, and nothing else is said about capacity.
    async fn until_annotated(&self, expected: &Value) {
        self.api.until("nodes", "", "n1", |node| (capacity(node?) == *expected).then_some(())).await;
    }

    /// Waits until this is what is said about option classes.
    async fn until_option_classes(&self, expected: Option<&Value>) {
        let said = |node: &Value| -> Option<Value> {
            let text = node.pointer("/metadata/annotations/topolvm.io~1lvcreate-option-class-capacity")?.as_str()?;
            serde_json::from_str(text).ok()
        };
        self.api.until("nodes", "", "n1", |node| (said(node?).as_ref() == expected).then_some(())).await;
    }

    fn metrics(&self) -> String {
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &self.registry).unwrap();
        page
    }

    async fn stop(self) {
        self.shutdown.cancel();
        self.tasks.wait().await.unwrap();
    }
}

fn capacity(node: &Value) -> Value {
    let annotations = node.pointer("/metadata/annotations").and_then(Value::as_object);
    annotations
        .into_iter()
        .flatten()
        .filter_map(|(key, value)| Some((key.strip_prefix("capacity.topolvm.io/")?.to_owned(), value.clone())))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

fn gib(gib: u64) -> String {
    (gib * GIB).to_string()
}

fn with_node() -> ApiServer {
    let api = ApiServer::new();
    api.apply_json(node("n1").finalizer("other/one").annotation("note", "keep").build());
    api
}

#[tokio::test]
async fn the_node_is_annotated_and_follows_each_change() {
    let mut agent = Agent::start(with_node());
    let lvmd = agent.lvmd(TWO_CLASSES).await;
    agent.until_annotated(&json!({"00default": gib(10), "ssd": gib(10), "hdd": gib(10)})).await;
    let node = agent.api.get_json("nodes", "", "n1").unwrap();
    assert_eq!(node.pointer("/metadata/finalizers"), Some(&json!(["other/one", "topolvm.io/node"])));
    assert_eq!(node.pointer("/metadata/annotations/note"), Some(&json!("keep")));
    agent.lvmd_returns.recv().await.unwrap();

    let wanted = CreateLvRequest {
        name: "u1".to_owned(),
        device_class: "hdd".to_owned(),
        size_bytes: 4 << 30,
        ..CreateLvRequest::default()
    };
    lvmd.client().create(wanted).await.unwrap();
    agent.until_annotated(&json!({"00default": gib(10), "ssd": gib(10), "hdd": gib(6)})).await;
    let metrics = agent.metrics();
    let line = format!("topolvm_volumegroup_available_bytes{{node=\"n1\",device_class=\"hdd\"}} {}", 6 * GIB);
    assert!(metrics.contains(&line), "{metrics}");
    agent.stop().await;
}

#[tokio::test]
async fn lvmd_restart_removes_annotations_of_missing_classes() {
    let mut agent = Agent::start(with_node());
    let lvmd = agent.lvmd(TWO_CLASSES).await;
    agent.until_annotated(&json!({"00default": gib(10), "ssd": gib(10), "hdd": gib(10)})).await;
    agent.lvmd_returns.recv().await.unwrap();
    lvmd.stop().await;
    let _lvmd = agent.lvmd(ONE_CLASS).await;
    agent.lvmd_returns.recv().await.unwrap();
    agent.until_annotated(&json!({"00default": gib(10), "ssd": gib(10)})).await;
    let metrics = agent.metrics();
    assert!(!metrics.contains("hdd"), "{metrics}");
    assert!(metrics.contains("topolvm_lvmd_connected{node=\"n1\"} 1"), "{metrics}");
    agent.stop().await;
}

#[tokio::test]
async fn option_class_annotation_exists_only_with_other_layouts() {
    let agent = Agent::start(with_node());
    agent.lvm.add_group(VG, 10 * GIB, 2);
    let lvmd = agent
        .lvmd(&format!(
            "{ONE_CLASS}lvcreate-option-classes: [{{name: mirrored, options: [--type=raid1]}}, {{name: ahead, options: \
             [--readahead=8]}}]"
        ))
        .await;
    let layouts = json!({
        "": {"free": 10 * GIB, "stripes": 1, "images": 1},
        "mirrored": {"free": 5 * GIB - EXTENT, "stripes": 1, "images": 2},
    });
    agent.until_option_classes(Some(&json!({"00default": layouts, "ssd": layouts}))).await;
    agent.until_annotated(&json!({"00default": gib(10), "ssd": gib(10)})).await;
    lvmd.stop().await;
    let _lvmd = agent.lvmd(ONE_CLASS).await;
    agent.until_option_classes(None).await;
    agent.stop().await;
}

#[tokio::test]
async fn node_created_later_or_again_is_annotated() {
    let agent = Agent::start(ApiServer::new());
    let _lvmd = agent.lvmd(ONE_CLASS).await;
    let full = json!({"00default": gib(10), "ssd": gib(10)});
    agent.api.wait_for_requests("watch", "nodes", 1).await;
    agent.api.apply_json(node("n1").build());
    agent.until_annotated(&full).await;
    agent.api.until("nodes", "", "n1", |node| node?.pointer("/metadata/finalizers").map(drop)).await;

    agent.api.delete("nodes", "", "n1");
    agent.api.edit("nodes", "", "n1", |node| *node.pointer_mut("/metadata/finalizers").unwrap() = json!([]));
    agent.api.apply_json(node("n1").build());
    agent.until_annotated(&full).await;
    agent.stop().await;
}

#[tokio::test]
async fn a_node_that_is_deleted_does_not_end_the_agent() {
    let agent = Agent::start(with_node());
    let _lvmd = agent.lvmd(ONE_CLASS).await;
    let full = json!({"00default": gib(10), "ssd": gib(10)});
    agent.until_annotated(&full).await;
    agent.api.delete("nodes", "", "n1");
    agent.api.edit("nodes", "", "n1", |node| *node.pointer_mut("/metadata/annotations").unwrap() = json!({}));
    agent.api.edit("nodes", "", "n1", |node| *node.pointer_mut("/metadata/finalizers").unwrap() = json!([]));
    agent.api.apply_json(node("n1").build());
    agent.until_annotated(&full).await;
    agent.stop().await;
}

#[tokio::test]
async fn writes_that_fail_are_tried_again() {
    let api = with_node();
    api.fail_next("patch", "nodes", 3, 500);
    let agent = Agent::start(api);
    let _lvmd = agent.lvmd(ONE_CLASS).await;
    agent.until_annotated(&json!({"00default": gib(10), "ssd": gib(10)})).await;
    agent.stop().await;
}

#[tokio::test]
async fn finalizer_added_at_the_same_time_is_not_lost() {
    let api = with_node();
    api.before_next("patch", "nodes", |api| {
        api.edit("nodes", "", "n1", |node| {
            *node.pointer_mut("/metadata/finalizers").unwrap() = json!(["other/one", "third/one"]);
        });
    });
    let agent = Agent::start(api);
    let _lvmd = agent.lvmd(ONE_CLASS).await;
    let all = json!(["other/one", "third/one", "topolvm.io/node"]);
    agent
        .api
        .until("nodes", "", "n1", |node| (node?.pointer("/metadata/finalizers") == Some(&all)).then_some(()))
        .await;
    agent.stop().await;
}
