use rstest::rstest;
use serde_json::{Value, json};
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::pod;

use super::super::tests::harness::{DEFAULTS, Harness};
use super::*;
use crate::scheduling::{Scheduling, SchedulingConfig};

const INSUFFICIENT: &str = "0/1 nodes are available: 1 Insufficient topolvm.io/capacity.";

/// A pending pod of this owner, for this reason.
fn pending(name: &str, owner: Option<(&str, &str)>, message: &str) -> Value {
    let mut pod = json!(pod(name).build());
    pod["metadata"]["labels"] = json!({TEMPLATE_HASH: "5d89b"});
    if let Some((kind, owner)) = owner {
        let reference = json!({"apiVersion": "apps/v1", "kind": kind, "name": owner, "uid": "u", "controller": true});
        pod["metadata"]["ownerReferences"] = json!([reference]);
    }
    let condition = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message});
    pod["status"] = json!({"phase": "Pending", "conditions": [condition]});
    pod
}

fn proof() -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": EXTENDER_PROBE, "namespace": "system"},
        "data": {"extender-proven": "true"},
    })
}

async fn start(server: &ApiServer, mode: Option<SchedulingMode>) -> Harness {
    let config = SchedulingConfig { mode, probe: None };
    let scheduling = Scheduling { config, ..Scheduling::default() };
    let harness = Harness::start_with(server, ApiFlavor::TopoLvm, DEFAULTS, |_, _, _, _| scheduling);
    harness.settle().await;
    harness
}

#[tokio::test(start_paused = true)]
async fn marked_pending_pods_are_reported_in_capacity_mode() {
    let server = ApiServer::new();
    server.apply_json(pending("marked", Some(("StatefulSet", "vault")), INSUFFICIENT));
    server.apply_json(pending("no-memory", None, "0/1 nodes are available: 1 Insufficient memory."));
    let harness = start(&server, Some(SchedulingMode::Capacity)).await;
    assert_eq!(harness.events(), [("CapacityResourceLeft".to_owned(), "marked".to_owned())]);
    let note = server.list_json("events.events.k8s.io")[0]["note"].to_string();
    assert!(note.contains("Recreate StatefulSet vault with: kubectl -n default delete pod marked"), "{note}");
    // The same again is counted
    tokio::time::sleep(INTERVAL).await;
    harness.settle().await;
    assert_eq!(server.list_json("events.events.k8s.io")[0]["series"]["count"], 2);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn in_the_mode_capacity_the_proof_of_earlier_is_deleted() {
    let server = ApiServer::new();
    server.apply_json(proof());
    let harness = start(&server, Some(SchedulingMode::Capacity)).await;
    assert_eq!(server.get_json("configmaps", "system", EXTENDER_PROBE), None);
    // That it is not there any more is no error
    tokio::time::sleep(INTERVAL).await;
    harness.settle().await;
    assert_eq!(server.count("delete", "configmaps"), 2);
    assert!(!harness.metrics().contains(r#"result="error""#), "{}", harness.metrics());
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn pods_are_named_also_where_the_proof_cannot_be_deleted() {
    let server = ApiServer::new();
    server.apply_json(pending("marked", None, INSUFFICIENT));
    server.fail_next("delete", "configmaps", 1, 403);
    let harness = start(&server, Some(SchedulingMode::Capacity)).await;
    assert_eq!(harness.events(), [("CapacityResourceLeft".to_owned(), "marked".to_owned())]);
    harness.end().await;
}

#[rstest]
#[case(None)]
#[case(Some(SchedulingMode::Extender))]
#[tokio::test(start_paused = true)]
async fn marked_pods_are_not_listed_in_other_modes(#[case] mode: Option<SchedulingMode>) {
    let server = ApiServer::new();
    server.apply_json(pending("marked", None, INSUFFICIENT));
    server.apply_json(proof());
    let harness = start(&server, mode).await;
    assert_eq!((harness.events(), server.count("list", "pods")), (Vec::new(), 0));
    assert!(server.get_json("configmaps", "system", EXTENDER_PROBE).is_some());
    harness.end().await;
}

#[rstest]
#[case::deployment(Some(("ReplicaSet", "web-5d89b")), "Deployment web", "rollout restart deployment/web")]
#[case::replica_set(Some(("ReplicaSet", "web")), "ReplicaSet web", "delete pod p")]
#[case::daemon_set(Some(("DaemonSet", "log")), "DaemonSet log", "rollout restart daemonset/log")]
#[case::stateful_set(Some(("StatefulSet", "vault")), "StatefulSet vault", "delete pod p")]
#[case::job(Some(("Job", "backup")), "Job backup", "delete pod p")]
#[case::no_owner(None, "Pod p", "delete pod p, and apply its manifest again without the resource")]
fn each_owner_has_its_command(#[case] of: Option<(&str, &str)>, #[case] owner: &str, #[case] command: &str) {
    let pod: Pod = serde_json::from_value(pending("p", of, INSUFFICIENT)).unwrap();
    let expected = Remedy { owner: owner.to_owned(), command: format!("kubectl -n default {command}") };
    assert_eq!(remedy(&pod), expected);
}
