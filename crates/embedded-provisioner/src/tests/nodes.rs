//! Selected nodes where no volume can be created.

use rstest::rstest;
use serde_json::{Value, json};
use topolvm_testkit::fixtures::node;

use super::harness::{Bench, DRIVER, claim, csi_node, settle};

const SELECTED: &str = "volume.kubernetes.io/selected-node";

fn on(node: &str) -> Value {
    json!({"metadata": {"annotations": {SELECTED: node}}})
}

#[tokio::test(start_paused = true)]
async fn claim_of_a_missing_node_is_scheduled_again() {
    let bench = Bench::start().await;
    bench.apply(claim("data", on("gone"))).await;
    assert_eq!(bench.claim("data")["metadata"]["annotations"][SELECTED], Value::Null);
    assert_eq!(
        (bench.created(), bench.reasons()),
        (0, vec!["Provisioning".to_owned(), "ProvisioningFailed".to_owned()])
    );
}

#[tokio::test(start_paused = true)]
async fn claim_of_a_node_without_csi_node_is_scheduled_again() {
    let bench = Bench::start().await;
    bench.server.apply_json(node("n2").build());
    bench.apply(claim("data", on("n2"))).await;
    assert_eq!((bench.created(), &bench.claim("data")["metadata"]["annotations"][SELECTED]), (0, &Value::Null));
    let notes = bench.server.event_notes("ProvisioningFailed");
    assert!(notes[0].contains("CSINode n2"), "{notes:?}");
}

#[rstest]
#[case::other_driver(csi_node("n2", &["ebs.example"]))]
#[case::without_topology(
    json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": "n2"},
           "spec": {"drivers": [{"name": DRIVER, "nodeID": "n"}]}})
)]
#[tokio::test(start_paused = true)]
async fn claim_waits_until_the_driver_is_registered_on_its_node(#[case] unregistered: Value) {
    let bench = Bench::start().await;
    bench.server.apply_json(node("n2").build());
    bench.server.apply_json(unregistered);
    settle().await;
    bench.apply(claim("data", on("n2"))).await;
    assert_eq!((bench.created(), &bench.claim("data")["metadata"]["annotations"][SELECTED]), (0, &json!("n2")));
    let notes = bench.server.event_notes("ProvisioningFailed");
    assert!(notes[0].contains("topolvm.io is not registered on node n2"), "{notes:?}");
    // No pause has to end
    bench.server.apply_json(csi_node("n2", &["ebs.example", DRIVER]));
    settle().await;
    assert_eq!(bench.created(), 1);
}

#[tokio::test(start_paused = true)]
async fn node_registrations_cause_no_requests() {
    let bench = Bench::start().await;
    bench.apply(claim("data", json!({}))).await;
    let counts = ["list", "watch", "get"].map(|verb| bench.server.count(verb, "csinodes"));
    assert_eq!((bench.created(), counts), (1, [1, 1, 0]));
}
