use serde_json::{Value, json};
use topolvm_api::{ApiFlavor, NodeSelection};
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::logical_volume;

use super::super::tests::harness::Harness;

fn node(labels: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": "n1", "labels": labels, "finalizers": ["other.io/x", "topolvm.io/node"],
            "annotations": {"capacity.topolvm.io/ssd": "1", "note": "keep"},
        },
    })
}

fn start(server: &ApiServer) -> Harness {
    let selection: NodeSelection = "topolvm.io/storage=enabled,superedge.io/local.pv=topolvm".parse().unwrap();
    Harness::start_selecting(server, ApiFlavor::TopoLvm, selection)
}

async fn until_labels(server: &ApiServer, expected: &Value) {
    server.until("nodes", "", "n1", |node| (&node?["metadata"]["labels"] == expected).then_some(())).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_with_volumes_has_a_label_that_says_so() {
    let server = ApiServer::new();
    server.apply_json(node(&json!({"superedge.io/local.pv": "topolvm"})));
    let harness = start(&server);
    server.apply_json(logical_volume("a").on("n1").build());
    let labelled = json!({"superedge.io/local.pv": "topolvm", "topolvm.io/has-volumes": "true"});
    until_labels(&server, &labelled).await;
    assert!(server.delete("logicalvolumes.topolvm.io", "", "a"));
    until_labels(&server, &json!({"superedge.io/local.pv": "topolvm"})).await;
    // It is still selected
    harness.settle().await;
    let left = server.get_json("nodes", "", "n1").unwrap();
    assert_eq!(left["metadata"]["finalizers"], json!(["other.io/x", "topolvm.io/node"]));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn deselected_node_is_cleaned_up_after_its_last_volume() {
    let server = ApiServer::new();
    server.apply_json(node(&json!({"topology.topolvm.io/node": "n1", "topolvm.io/has-volumes": "true"})));
    server.apply_json(logical_volume("a").on("n1").build());
    let harness = start(&server);
    harness.settle().await;
    let kept = server.get_json("nodes", "", "n1").unwrap();
    assert_eq!(kept["metadata"]["annotations"]["capacity.topolvm.io/ssd"], "1");
    assert!(server.delete("logicalvolumes.topolvm.io", "", "a"));
    server
        .until("nodes", "", "n1", |node| (node?["metadata"]["finalizers"] == json!(["other.io/x"])).then_some(()))
        .await;
    let left = server.get_json("nodes", "", "n1").unwrap();
    assert_eq!(
        (&left["metadata"]["labels"], &left["metadata"]["annotations"]),
        (&Value::Null, &json!({"note": "keep"}))
    );
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn without_a_selection_nodes_are_left_alone() {
    let server = ApiServer::new();
    server.apply_json(node(&json!({})));
    server.apply_json(logical_volume("a").on("n1").build());
    let harness = Harness::start_selecting(&server, ApiFlavor::TopoLvm, NodeSelection::default());
    harness.settle().await;
    assert_eq!(server.count("patch", "nodes"), 0);
    harness.end().await;
}
