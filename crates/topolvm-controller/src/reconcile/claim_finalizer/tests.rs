use rstest::rstest;
use serde_json::{Value, json};
use topolvm_api::ApiFlavor;
use topolvm_testkit::ApiServer;
use topolvm_testkit::api_server::Failure;
use topolvm_testkit::fixtures::{claim, pod};

use super::super::ControllerSettings;
use super::super::tests::harness::{DEFAULTS, Harness};
use super::*;

const CLAIMS: &str = "persistentvolumeclaims";
const KEPT: ControllerSettings = ControllerSettings { pvc_finalizer: true, ..DEFAULTS };
const PROTECTION: &str = "kubernetes.io/pvc-protection";

fn with_finalizers(names: &[&str]) -> PersistentVolumeClaim {
    names.iter().fold(claim("data"), |claim, name| claim.finalizer(name)).build()
}

fn finalizers_of(server: &ApiServer) -> Value {
    server.get_json(CLAIMS, "default", "data").unwrap()["metadata"]["finalizers"].clone()
}

/// A pod that uses the claim, in this phase.
fn user(name: &str, claim: &str, phase: &str) -> Value {
    let mut pod = serde_json::to_value(pod(name).claim(claim).build()).unwrap();
    pod["status"] = json!({"phase": phase});
    pod
}

#[rstest]
#[case::present(&["topolvm.io/pvc"], Value::Null)]
#[case::legacy(&["topolvm.cybozu.com/pvc"], Value::Null)]
#[case::both_and_twice(
    &["topolvm.io/pvc", PROTECTION, "topolvm.cybozu.com/pvc", "topolvm.io/pvc"],
    json!([PROTECTION])
)]
#[case::none(&[PROTECTION, "other/pvc"], json!([PROTECTION, "other/pvc"]))]
#[tokio::test(start_paused = true)]
async fn finalizers_of_old_versions_are_removed(#[case] before: &[&str], #[case] after: Value) {
    for flavor in [ApiFlavor::TopoLvm, ApiFlavor::Legacy] {
        let server = ApiServer::new();
        server.apply_json(with_finalizers(before));
        let harness = Harness::start_as(&server, flavor, DEFAULTS);
        harness.settle().await;
        assert_eq!(finalizers_of(&server), after);
        harness.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn finalizer_added_meanwhile_is_kept() {
    let server = ApiServer::new();
    server.apply_json(with_finalizers(&["topolvm.io/pvc"]));
    server.before_next("patch", CLAIMS, |server| {
        server.edit(CLAIMS, "default", "data", |claim| {
            claim["metadata"]["finalizers"] = json!(["other/one", "topolvm.io/pvc"]);
        });
    });
    let harness = Harness::start(&server, DEFAULTS);
    let done = json!(["other/one"]);
    let is_done = |claim: Option<&Value>| (claim?["metadata"]["finalizers"] == done).then_some(());
    server.until(CLAIMS, "default", "data", is_done).await;
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_finalizer_kept_on_purpose_stays_on_a_claim_that_lives() {
    let server = ApiServer::new();
    server.apply_json(with_finalizers(&["topolvm.cybozu.com/pvc", "topolvm.io/pvc"]));
    let harness = Harness::start(&server, KEPT);
    harness.settle().await;
    assert_eq!(finalizers_of(&server), json!(["topolvm.io/pvc"]), "the other group's is obsolete all the same");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn claim_finalizer_removal_deletes_pending_pods_if_it_is_last() {
    let server = ApiServer::new();
    server.apply_json(with_finalizers(&["topolvm.io/pvc", PROTECTION]));
    server.apply_json(user("pending", "data", "Pending"));
    server.apply_json(user("running", "data", "Running"));
    server.apply_json(user("other", "else", "Pending"));
    let mut elsewhere = user("elsewhere", "data", "Pending");
    elsewhere["metadata"]["namespace"] = json!("another");
    server.apply_json(elsewhere);
    let harness = Harness::start(&server, KEPT);
    server.delete(CLAIMS, "default", "data");
    harness.settle().await;
    assert_eq!(finalizers_of(&server), json!(["topolvm.io/pvc", PROTECTION]), "a pod may still use it");
    assert!(harness.has("pods", "default", "pending"));

    server.edit(CLAIMS, "default", "data", |claim| claim["metadata"]["finalizers"] = json!(["topolvm.io/pvc"]));
    harness.gone("pods", "default", "pending").await;
    harness.gone(CLAIMS, "default", "data").await;
    harness.settle().await;
    assert!(harness.has("pods", "default", "running"));
    assert!(harness.has("pods", "default", "other"));
    assert!(harness.has("pods", "another", "elsewhere"));
    assert_eq!(harness.events(), [("ClaimGone".to_owned(), "pending".to_owned())]);
    harness.end().await;
}

/// The next leader begins with the claims that are there.
#[tokio::test(start_paused = true)]
async fn claim_finalizer_removal_by_an_ending_leader_deletes_the_pod() {
    let server = ApiServer::new();
    server.apply_json(with_finalizers(&["topolvm.io/pvc"]));
    server.apply_json(user("pending", "data", "Pending"));
    let harness = Harness::start(&server, KEPT);
    let end = harness.shutdown.clone();
    server.before_next("patch", CLAIMS, move |server| {
        server.edit(CLAIMS, "default", "data", |claim| claim["metadata"]["finalizers"] = json!([]));
        end.cancel();
    });
    server.delete(CLAIMS, "default", "data");
    harness.gone(CLAIMS, "default", "data").await;
    harness.end().await;
    assert!(server.get_json("pods", "default", "pending").is_none());
}

#[tokio::test(start_paused = true)]
async fn claim_finalizer_is_removed_from_claims_deleted_earlier() {
    let server = ApiServer::new();
    server.apply_json(with_finalizers(&["topolvm.io/pvc"]));
    server.apply_json(user("pending", "data", "Pending"));
    server.delete(CLAIMS, "default", "data");
    let harness = Harness::start(&server, KEPT);
    harness.gone(CLAIMS, "default", "data").await;
    assert!(!harness.has("pods", "default", "pending"));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn claim_finalizer_deletes_pods_despite_a_lost_patch_answer() {
    let server = ApiServer::new();
    server.apply_json(with_finalizers(&["topolvm.io/pvc"]));
    server.apply_json(user("pending", "data", "Pending"));
    server.before_next("patch", CLAIMS, |server| drop(server.apply_json(user("late", "data", "Pending"))));
    server.inject("patch", CLAIMS, 1, Failure::LostAnswer);
    let harness = Harness::start(&server, KEPT);
    server.delete(CLAIMS, "default", "data");
    harness.gone("pods", "default", "pending").await;
    harness.gone("pods", "default", "late").await;
    assert!(!harness.has(CLAIMS, "default", "data"));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_can_use_a_new_claim_of_the_name_stays() {
    let server = ApiServer::new();
    server.apply_json(with_finalizers(&["topolvm.io/pvc"]));
    // Both made after the end of the old claim
    server.before_next("patch", CLAIMS, |server| {
        server.edit(CLAIMS, "default", "data", |claim| claim["metadata"]["finalizers"] = json!([]));
        server.apply_json(claim("data").build());
        server.apply_json(user("pending", "data", "Pending"));
    });
    let harness = Harness::start(&server, KEPT);
    server.delete(CLAIMS, "default", "data");
    server.wait_for_requests("get", CLAIMS, 2).await;
    harness.settle().await;
    assert!(harness.has("pods", "default", "pending"));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_has_begun_to_run_meanwhile_stays() {
    let server = ApiServer::new();
    server.apply_json(with_finalizers(&["topolvm.io/pvc"]));
    server.apply_json(user("pod", "data", "Pending"));
    server.before_next("delete", "pods", |server| {
        server.edit("pods", "default", "pod", |pod| pod["status"]["phase"] = json!("Running"));
    });
    let harness = Harness::start(&server, KEPT);
    server.delete(CLAIMS, "default", "data");
    server.wait_for_requests("list", "pods", 2).await;
    harness.settle().await;
    assert!(harness.has("pods", "default", "pod"));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn pods_are_deleted_although_the_api_server_fails() {
    let server = ApiServer::new();
    server.apply_json(with_finalizers(&["topolvm.io/pvc"]));
    server.apply_json(user("pending", "data", "Pending"));
    server.fail_next("list", "pods", 3, 500);
    server.fail_next("delete", "pods", 1, 503);
    let harness = Harness::start(&server, KEPT);
    server.delete(CLAIMS, "default", "data");
    harness.gone("pods", "default", "pending").await;
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn no_pod_is_listed_while_no_claim_is_deleted() {
    let server = ApiServer::new();
    server.apply_json(with_finalizers(&["topolvm.io/pvc", "topolvm.cybozu.com/pvc"]));
    server.apply_json(user("pending", "data", "Pending"));
    let harness = Harness::start(&server, KEPT);
    harness.settle().await;
    assert_eq!(server.count("list", "pods"), 0);
    assert_eq!(server.count("patch", CLAIMS), 1);
    harness.end().await;
}
