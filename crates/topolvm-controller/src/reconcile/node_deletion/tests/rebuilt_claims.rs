//! Claims that are recreated when their Node is deleted: the controller of deleted Nodes leaves them to
//! `claim_rebuild`.

use std::time::Duration;

use claim_rebuild::RebuildArgs;
use serde_json::json;
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::{apply_claim_on_n1, claim, stateful_set_on_a_node};

use super::super::super::tests::harness::Harness;
use crate::added_controllers::add_rebuild;

const LVS: &str = "logicalvolumes.topolvm.io";
const CLAIMS: &str = "persistentvolumeclaims";
/// Less than the grace period by a moment.
const JUST_BEFORE: Duration = Duration::from_secs(299);
/// More than the grace period and the look after it, with which the finalizer goes.
const LONG: Duration = Duration::from_mins(10);

/// Starts the controllers, with those of claims that are recreated.
fn start(server: &ApiServer) -> Harness {
    start_with(server, true)
}

fn start_with(server: &ApiServer, rebuild_claims: bool) -> Harness {
    let args = RebuildArgs { rebuild_claims, rebuild_grace_period: Duration::from_mins(5) };
    Harness::start_composed(server, |controllers| add_rebuild(controllers, args))
}

async fn is_rebuilt(harness: &Harness) -> bool {
    tokio::time::sleep(LONG).await;
    let is_gone = !harness.has(CLAIMS, "default", "data-db-0");
    assert_eq!(is_gone, !harness.has("pods", "default", "db-0"), "claim and pod go together");
    is_gone
}

#[tokio::test(start_paused = true)]
async fn claim_and_pod_of_a_deleted_node_are_recreated() {
    let server = stateful_set_on_a_node("on-node-deleted");
    let harness = start(&server);
    harness.settle().await;
    server.delete("nodes", "", "n1");
    assert!(is_rebuilt(&harness).await);
    assert_eq!(harness.server.event_notes("Rebuilding").len(), 2);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn claim_with_an_unknown_rebuild_value_outlives_its_node() {
    let server = stateful_set_on_a_node("on-node-deleted");
    server.edit(CLAIMS, "default", "data-db-0", |claim| {
        claim["metadata"]["annotations"]["topolvm.io/rebuild"] = json!("always");
    });
    let harness = start(&server);
    harness.settle().await;
    server.delete("nodes", "", "n1");
    assert!(!is_rebuilt(&harness).await);
    assert_eq!(harness.server.event_notes("RebuildRefused").len(), 1);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_happens_before_the_grace_period_has_passed() {
    let server = stateful_set_on_a_node("on-node-deleted");
    let harness = start(&server);
    harness.settle().await;
    server.delete("nodes", "", "n1");
    tokio::time::sleep(JUST_BEFORE).await;
    assert!(!harness.has("nodes", "", "n1"), "the finalizer of the Node waits for nothing");
    assert!(harness.has(CLAIMS, "default", "data-db-0"));
    assert!(harness.has(LVS, "", "pvc-data-db-0"), "the volume would be there if the node came back");
    assert!(is_rebuilt(&harness).await);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn node_deletion_removes_claims_without_the_rebuild_flag() {
    let server = stateful_set_on_a_node("on-node-deleted");
    let harness = start_with(&server, false);
    harness.settle().await;
    server.delete("nodes", "", "n1");
    harness.gone(CLAIMS, "default", "data-db-0").await;
    assert_eq!(harness.server.event_notes("NodeDeleted").len(), 2);
    assert_eq!(harness.server.event_notes("Rebuilding"), Vec::<String>::new());
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_does_not_ask_for_it_goes_with_its_node_as_ever() {
    let server = stateful_set_on_a_node("on-node-deleted");
    apply_claim_on_n1(&server, "other");
    server.edit(CLAIMS, "default", "other", |claim| {
        claim["metadata"]["annotations"]["topolvm.io/rebuild"] = json!("never");
    });
    let harness = start(&server);
    harness.settle().await;
    server.delete("nodes", "", "n1");
    harness.gone(CLAIMS, "default", "other").await;
    harness.gone(LVS, "", "pvc-other").await;
    assert!(harness.has(CLAIMS, "default", "data-db-0"));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn volume_that_a_recreated_claim_keeps_outlives_its_node() {
    let server = stateful_set_on_a_node("on-node-deleted");
    server.edit(CLAIMS, "default", "data-db-0", |claim| {
        claim["metadata"]["annotations"]["topolvm.io/rebuild-keep"] = json!("true");
    });
    let harness = start(&server);
    harness.settle().await;
    server.delete("nodes", "", "n1");
    assert!(is_rebuilt(&harness).await);
    assert!(harness.has(LVS, "", "pvc-data-db-0"));
    server.apply_json(claim("data-db-0").class("fast").selected_node("n2").build());
    tokio::time::sleep(LONG).await;
    assert!(harness.has(CLAIMS, "default", "data-db-0"), "the new claim has a node");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn live_held_claim_loses_only_our_finalizer() {
    let server = stateful_set_on_a_node("on-node-deleted");
    // Bound by hand, so that nothing says whose it is
    server.edit(CLAIMS, "default", "data-db-0", |claim| {
        claim["metadata"] = json!({
            "name": "data-db-0", "namespace": "default", "finalizers": ["other/one", "topolvm.io/rebuilding"],
        });
    });
    let harness = start_with(&server, false);
    tokio::time::sleep(LONG).await;
    let claim = server.get_json(CLAIMS, "default", "data-db-0").unwrap();
    assert_eq!(claim["metadata"]["finalizers"], json!(["other/one"]));
    assert!(claim["metadata"]["deletionTimestamp"].is_null());
    assert!(harness.has("pods", "default", "db-0"));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_healthy_cluster_costs_no_requests_but_for_the_classes() {
    let server = stateful_set_on_a_node("on-out-of-service-taint");
    let harness = start(&server);
    tokio::time::sleep(Duration::from_mins(2)).await;
    server.clear_requests();
    tokio::time::sleep(Duration::from_mins(5)).await;
    let requests = server.requests();
    let others: Vec<_> =
        requests.iter().filter(|(verb, resource)| *verb != "watch" && !resource.contains("storageclasses")).collect();
    assert!(others.is_empty(), "{others:?}");
    harness.end().await;
}
