//! Leases that are lost and acquired again.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};
use tonic::Code;

use super::driver::Answer;
use super::harness::{Bench, CLAIMS, EVENTS, VOLUMES, claim};

const SELECTED: &str = "volume.kubernetes.io/selected-node";

#[tokio::test(start_paused = true)]
async fn nothing_is_done_between_terms() {
    let mut bench = Bench::start().await;
    bench.end_term().await;
    bench.apply(claim("data", json!({}))).await;
    assert_eq!(bench.created(), 0);
    bench.begin_term().await;
    assert_eq!(bench.created(), 1);
}

#[tokio::test(start_paused = true)]
async fn unfinished_attempt_continues_in_the_next_term() {
    let mut bench = Bench::start().await;
    bench.driver.answer(&[Answer::Never]);
    bench.apply(claim("data", json!({}))).await;
    bench.end_term().await;
    bench.server.delete(CLAIMS, "default", "data");
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(bench.created(), 1);
    bench.begin_term().await;
    let requests = bench.driver.created.lock().clone();
    assert_eq!((requests.len(), &requests[0]), (2, &requests[1]));
    assert!(bench.volume("pvc-uid-data").is_some());
}

/// The Lease is lost while a request after the call hangs.
#[rstest]
#[case::volume("create", VOLUMES)]
#[case::event("create", EVENTS)]
#[tokio::test(start_paused = true)]
async fn success_is_reported_in_the_next_term(#[case] verb: &'static str, #[case] resource: &'static str) {
    let mut bench = Bench::start().await;
    bench.driver.inject_after_call(&bench.server, verb, resource);
    bench.apply(claim("data", json!({}))).await;
    assert_eq!(bench.reasons(), ["Provisioning"]);
    bench.lose_lease().await;
    assert_eq!(bench.reasons(), ["Provisioning", "ProvisioningSucceeded"]);
    assert_eq!((bench.volume("pvc-uid-data").is_some(), bench.deleted()), (true, vec![]));
}

/// The Lease is lost while what follows from a failed call hangs.
#[rstest]
#[case::event("create", EVENTS)]
#[case::deselection("patch", CLAIMS)]
#[tokio::test(start_paused = true)]
async fn exhausted_node_is_deselected_in_the_next_term(#[case] verb: &'static str, #[case] resource: &'static str) {
    let mut bench = Bench::start().await;
    bench.driver.answer(&vec![Answer::Fails(Code::ResourceExhausted); 3]);
    bench.driver.inject_after_call(&bench.server, verb, resource);
    bench.apply(claim("data", json!({}))).await;
    assert_eq!(bench.claim("data")["metadata"]["annotations"][SELECTED], "n1");
    bench.lose_lease().await;
    assert_eq!(bench.claim("data")["metadata"]["annotations"][SELECTED], Value::Null);
    // The driver is not asked again: it would create another LogicalVolume
    assert_eq!((bench.created(), bench.server.event_notes("ProvisioningFailed").len()), (1, 1));
}

/// Another process was the provisioner in between, and was killed during its own attempt.
#[tokio::test(start_paused = true)]
async fn claim_held_by_another_process_stays_held() {
    let mut bench = Bench::start().await;
    bench.driver.answer(&[Answer::Fails(Code::ResourceExhausted)]);
    bench.driver.inject_after_call(&bench.server, "create", EVENTS);
    bench.apply(claim("data", json!({}))).await;
    bench.end_term().await;
    bench.server.edit(CLAIMS, "default", "data", |claim| {
        claim["metadata"]["finalizers"] = json!(["topolvm.io/provisioning"]);
    });
    bench.server.delete(CLAIMS, "default", "data");
    bench.begin_term().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    // The attempt is repeated, and shows whether there is a volume
    assert_eq!((bench.created(), bench.volume("pvc-uid-data").is_some()), (2, true));
    assert_eq!(bench.server.get_json(CLAIMS, "default", "data"), None);
}

#[tokio::test(start_paused = true)]
async fn refused_request_is_not_repeated_in_the_next_term() {
    let mut bench = Bench::start().await;
    bench.driver.answer(&vec![Answer::Fails(Code::InvalidArgument); 3]);
    bench.driver.inject_after_call(&bench.server, "create", EVENTS);
    bench.apply(claim("data", json!({}))).await;
    bench.lose_lease().await;
    assert_eq!((bench.created(), bench.server.event_notes("ProvisioningFailed").len()), (1, 1));
}

/// A process that is no leader any more watches no claims, and watches them again as the next leader.
#[tokio::test(start_paused = true)]
async fn attempt_outlives_the_terms_of_a_leader() {
    let mut bench = Bench::start().await;
    bench.driver.answer(&[Answer::Never]);
    bench.apply(claim("data", json!({}))).await;
    bench.server.delete(CLAIMS, "default", "data");
    bench.lose_leadership().await;
    assert_eq!(bench.created(), 2);
    assert_eq!(bench.reasons(), ["Provisioning", "ProvisioningSucceeded"]);
}

#[tokio::test(start_paused = true)]
async fn volume_lost_between_terms_is_created_again() {
    let mut bench = Bench::start().await;
    bench.apply(claim("data", json!({}))).await;
    bench.end_term().await;
    bench.server.edit(VOLUMES, "", "pvc-uid-data", |volume| volume["metadata"]["finalizers"] = json!([]));
    bench.server.delete(VOLUMES, "", "pvc-uid-data");
    bench.begin_term().await;
    assert_eq!(bench.created(), 2);
    assert!(bench.volume("pvc-uid-data").is_some());
}
