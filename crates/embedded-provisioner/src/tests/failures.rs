use std::sync::Arc;
use std::time::Duration;

use kube::runtime::watcher::Event;
use rstest::rstest;
use serde_json::{Value, json};
use tonic::Code;
use topolvm_api::ApiFlavor;
use topolvm_kube::{CacheWriter, CachedClaim};
use topolvm_testkit::fixtures::node;

use super::driver::{Answer, FakeDriver};
use super::harness::{Bench, CLAIMS, DRIVER, claim, class, csi_node, settle};

use crate::release_held_claims;

const SELECTED: &str = "volume.kubernetes.io/selected-node";

async fn seconds(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[rstest]
#[case(Code::Cancelled)]
#[case(Code::DeadlineExceeded)]
#[case(Code::Unavailable)]
#[case(Code::Aborted)]
#[tokio::test(start_paused = true)]
async fn unfinished_attempt_is_repeated_unchanged_without_its_claim(#[case] code: Code) {
    let bench = Bench::start().await;
    bench.driver.answer(&[Answer::Fails(code), Answer::Fails(code)]);
    bench.apply(claim("data", json!({}))).await;
    bench.server.delete(CLAIMS, "default", "data");
    seconds(10).await;
    let requests = bench.driver.created.lock().clone();
    assert_eq!((requests.len(), &requests[0], &requests[1]), (3, &requests[1], &requests[2]));
    // Kubernetes releases the PersistentVolume of a claim that does not exist
    bench.set_phase("pvc-uid-data", "Released").await;
    assert_eq!((bench.deleted(), bench.volume("pvc-uid-data")), (vec!["id-pvc-uid-data".to_owned()], None));
}

#[tokio::test(start_paused = true)]
async fn unfinished_attempt_ends_with_a_final_error_and_no_volume() {
    let bench = Bench::start().await;
    bench.driver.answer(&[Answer::Fails(Code::Aborted), Answer::Fails(Code::Internal)]);
    bench.apply(claim("data", json!({}))).await;
    bench.server.delete(CLAIMS, "default", "data");
    seconds(1000).await;
    assert_eq!((bench.created(), bench.volume("pvc-uid-data")), (2, None));
}

#[tokio::test(start_paused = true)]
async fn unfinished_attempt_keeps_its_node_when_the_claim_loses_it() {
    let bench = Bench::start().await;
    bench.driver.answer(&[Answer::Fails(Code::Unavailable)]);
    bench.apply(claim("data", json!({}))).await;
    bench.apply(claim("data", json!({"metadata": {"annotations": {SELECTED: ""}}}))).await;
    seconds(2).await;
    let requests = bench.driver.created.lock().clone();
    assert_eq!((requests.len(), &requests[0]), (2, &requests[1]));
    assert!(bench.volume("pvc-uid-data").is_some());
}

#[tokio::test(start_paused = true)]
async fn unanswered_call_ends_after_the_timeout_and_is_repeated() {
    let bench = Bench::start().await;
    bench.driver.answer(&[Answer::Never]);
    bench.apply(claim("data", json!({}))).await;
    seconds(9).await;
    assert_eq!((bench.created(), bench.volume("pvc-uid-data")), (1, None));
    seconds(3).await;
    assert_eq!(bench.created(), 2);
    assert!(bench.server.event_notes("ProvisioningFailed")[0].contains("code = DeadlineExceeded"));
    assert!(bench.volume("pvc-uid-data").is_some());
}

#[tokio::test(start_paused = true)]
async fn exhausted_node_is_deselected_and_the_next_one_is_used() {
    let bench = Bench::start().await;
    bench.driver.answer(&[Answer::Fails(Code::ResourceExhausted)]);
    bench.apply(claim("data", json!({}))).await;
    assert_eq!(bench.claim("data")["metadata"]["annotations"][SELECTED], Value::Null);
    let notes = bench.server.event_notes("ProvisioningFailed");
    let expected = "failed to provision volume with StorageClass \"fast\": rpc error: code = ResourceExhausted desc = \
                    as the test says";
    assert_eq!(notes, [expected]);
    seconds(1000).await;
    assert_eq!(bench.created(), 1);
    bench.apply(claim("data", json!({}))).await;
    assert_eq!(bench.created(), 2);
    assert!(bench.volume("pvc-uid-data").is_some());
}

#[tokio::test(start_paused = true)]
async fn node_that_the_scheduler_has_changed_is_not_deselected() {
    let bench = Bench::start().await;
    bench.server.apply_json(node("n2").build());
    bench.server.apply_json(csi_node("n2", &[DRIVER]));
    bench.driver.answer(&[Answer::Fails(Code::ResourceExhausted)]);
    bench.server.before_next("patch", CLAIMS, |server| {
        server.edit(CLAIMS, "default", "data", |claim| claim["metadata"]["annotations"][SELECTED] = json!("n2"));
    });
    bench.apply(claim("data", json!({}))).await;
    assert_eq!(bench.claim("data")["metadata"]["annotations"][SELECTED], "n2");
}

#[tokio::test(start_paused = true)]
async fn deselection_is_repeated_when_the_api_server_fails() {
    let bench = Bench::start().await;
    bench.driver.answer(&[Answer::Fails(Code::ResourceExhausted)]);
    bench.server.fail_next("patch", CLAIMS, 1, 500);
    bench.apply(claim("data", json!({}))).await;
    assert_eq!(bench.claim("data")["metadata"]["annotations"][SELECTED], "n1");
    seconds(2).await;
    assert_eq!(bench.claim("data")["metadata"]["annotations"][SELECTED], Value::Null);
    // The driver is not asked again: it would create another LogicalVolume
    assert_eq!((bench.created(), bench.server.event_notes("ProvisioningFailed").len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn exhausted_immediate_claim_is_retried_with_pauses() {
    let bench = Bench::start().await;
    bench.server.apply_json(class("now", json!({"volumeBindingMode": "Immediate"})));
    let exhausted = || Answer::Fails(Code::ResourceExhausted);
    bench.driver.answer(&[exhausted(), exhausted(), exhausted()]);
    let now = json!({"spec": {"storageClassName": "now"}, "metadata": {"annotations": {SELECTED: null}}});
    bench.apply(claim("data", now)).await;
    // After 1, 2 and 4 seconds
    for (pause, calls) in [(0, 1), (1, 2), (2, 3), (4, 4)] {
        seconds(pause).await;
        assert_eq!(bench.created(), calls, "after {pause} s");
    }
    assert!(bench.volume("pvc-uid-data").is_some());
}

#[tokio::test(start_paused = true)]
async fn infeasible_request_is_repeated_at_the_longest_interval() {
    let bench = Bench::start().await;
    bench.driver.answer(&vec![Answer::Fails(Code::InvalidArgument); 3]);
    bench.apply(claim("data", json!({}))).await;
    for number in 0..3 {
        seconds(60).await;
        bench.apply(claim("data", json!({"metadata": {"annotations": {"a": number.to_string()}}}))).await;
    }
    assert_eq!((bench.created(), bench.server.event_notes("ProvisioningFailed").len()), (1, 1));
    seconds(300).await;
    assert_eq!(bench.created(), 2);
    seconds(300).await;
    assert_eq!(bench.created(), 3);
    assert_eq!(bench.server.event_notes("ProvisioningFailed").len(), 1, "repetitions are counted");
}

#[tokio::test(start_paused = true)]
async fn infeasible_request_is_repeated_with_another_class() {
    let bench = Bench::start().await;
    bench.driver.answer(&[Answer::Fails(Code::InvalidArgument)]);
    bench.apply(claim("data", json!({}))).await;
    bench.server.delete("storageclasses", "", "fast");
    bench.server.apply_json(class("fast", json!({"parameters": {"a": "b"}})));
    settle().await;
    assert_eq!(bench.created(), 2);
    assert!(bench.volume("pvc-uid-data").is_some());
}

#[rstest]
#[case::selector(json!({"spec": {"selector": {"matchLabels": {"a": "b"}}}}), "remove the selector")]
#[case::access_mode(json!({"spec": {"accessModes": ["Other"]}}), "use ReadWriteOnce")]
#[case::source(
    json!({"spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": "gone"}}}), "PersistentVolumeClaim gone"
)]
#[tokio::test(start_paused = true)]
async fn refused_claim_has_one_event_with_the_fix(#[case] changes: Value, #[case] fix: &str) {
    let bench = Bench::start().await;
    bench.apply(claim("data", changes)).await;
    seconds(100).await;
    let notes = bench.server.event_notes("ProvisioningFailed");
    assert_eq!((bench.created(), notes.len()), (0, 1));
    assert!(notes[0].contains(fix), "{notes:?}");
}

#[tokio::test(start_paused = true)]
async fn claim_of_a_populator_is_left_to_it() {
    let bench = Bench::start().await;
    let source = json!({"spec": {"dataSource": {"apiGroup": "a.example", "kind": "Image", "name": "i"}}});
    bench.apply(claim("data", source)).await;
    seconds(1000).await;
    assert_eq!(bench.created(), 0);
    assert!(bench.events().iter().all(|(reason, _)| reason == "Provisioning"), "{:?}", bench.events());
}

#[tokio::test(start_paused = true)]
async fn smaller_volume_is_deleted_and_requested_again() {
    let bench = Bench::start().await;
    bench.driver.answer(&[Answer::Small]);
    bench.driver.deletion_errors.lock().push_back(Code::Internal);
    bench.apply(claim("data", json!({}))).await;
    assert_eq!((bench.deleted().len(), bench.volume("pvc-uid-data")), (2, None));
    seconds(2).await;
    assert_eq!(bench.created(), 2);
    assert!(bench.volume("pvc-uid-data").is_some());
}

fn finalizers(bench: &Bench) -> Value {
    bench.claim("data")["metadata"]["finalizers"].clone()
}

#[tokio::test(start_paused = true)]
async fn claim_is_held_while_the_outcome_is_unknown() {
    let bench = Bench::start().await;
    bench.driver.answer(&[Answer::Fails(Code::Aborted), Answer::Fails(Code::Internal)]);
    bench.apply(claim("data", json!({}))).await;
    assert_eq!(finalizers(&bench), json!(["topolvm.io/provisioning"]));
    seconds(1).await;
    assert!(finalizers(&bench).as_array().is_none_or(Vec::is_empty), "{}", finalizers(&bench));
    seconds(5).await;
    assert!(bench.volume("pvc-uid-data").is_some());
}

#[rstest]
#[case::created(&[], 1)]
#[case::still_unknown(&[Answer::Fails(Code::Unavailable)], 1)]
#[case::failed(&[Answer::Fails(Code::Internal)], 0)]
#[case::full(&[Answer::Fails(Code::ResourceExhausted)], 0)]
#[case::refused(&[Answer::Fails(Code::InvalidArgument)], 0)]
#[tokio::test(start_paused = true)]
async fn deleted_claim_of_an_earlier_process_leaks_no_volume(#[case] answers: &[Answer], #[case] volumes: usize) {
    let earlier = Bench::start().await;
    earlier.driver.answer(&vec![Answer::Fails(Code::Aborted); 2]);
    earlier.apply(claim("data", json!({}))).await;
    earlier.server.delete(CLAIMS, "default", "data");
    let request = earlier.driver.created.lock()[0].clone();
    // Its memory is lost
    let server = earlier.stop().await;
    let driver = Arc::new(FakeDriver::default());
    driver.answer(answers);
    let bench = Bench::start_with(server, driver).await;
    seconds(5).await;
    assert_eq!(bench.driver.created.lock()[0], request);
    assert_eq!(bench.server.get_json(CLAIMS, "default", "data"), None);
    assert_eq!(bench.server.list_json("persistentvolumes").len(), volumes);
}

#[tokio::test(start_paused = true)]
async fn bound_claim_is_not_held() {
    let bench = Bench::start().await;
    let held = json!({"metadata": {"finalizers": ["topolvm.io/provisioning"]}, "spec": {"volumeName": "other"}});
    bench.apply(claim("data", held)).await;
    assert!(finalizers(&bench).as_array().is_none_or(Vec::is_empty), "{}", finalizers(&bench));
    assert_eq!(bench.created(), 0);
}

#[tokio::test(start_paused = true)]
async fn deleted_claim_without_its_class_is_released() {
    let earlier = Bench::start().await;
    earlier.driver.answer(&vec![Answer::Fails(Code::Aborted); 2]);
    earlier.apply(claim("data", json!({}))).await;
    earlier.server.delete(CLAIMS, "default", "data");
    let server = earlier.stop().await;
    server.delete("storageclasses", "", "fast");
    let bench = Bench::start_with(server, Arc::default()).await;
    assert_eq!(bench.server.get_json(CLAIMS, "default", "data"), None);
}

#[tokio::test(start_paused = true)]
async fn deleted_claim_is_held_until_its_agent_is_back() {
    let earlier = Bench::start().await;
    earlier.driver.answer(&vec![Answer::Fails(Code::Aborted); 2]);
    earlier.apply(claim("data", json!({}))).await;
    earlier.server.delete(CLAIMS, "default", "data");
    let server = earlier.stop().await;
    server.apply_json(csi_node("n1", &[]));
    let bench = Bench::start_with(server, Arc::default()).await;
    seconds(100).await;
    assert_eq!((bench.created(), finalizers(&bench)), (0, json!(["topolvm.io/provisioning"])));
    bench.server.apply_json(csi_node("n1", &[DRIVER]));
    settle().await;
    assert_eq!((bench.created(), bench.server.get_json(CLAIMS, "default", "data")), (1, None));
    assert!(bench.volume("pvc-uid-data").is_some());
}

#[tokio::test(start_paused = true)]
async fn held_claim_is_released_where_no_provisioner_runs() {
    let bench = Bench::start().await;
    bench.driver.answer(&[Answer::Fails(Code::Aborted)]);
    bench.apply(claim("data", json!({}))).await;
    let server = bench.stop().await;
    let mut writer = CacheWriter::default();
    let held = serde_json::from_value(server.get_json(CLAIMS, "default", "data").unwrap()).unwrap();
    let cache = writer.as_reader();
    for event in [Event::Init, Event::InitApply(held), Event::InitDone] {
        writer.apply(&CachedClaim::from_event(ApiFlavor::TopoLvm, &event));
    }
    release_held_claims(server.client(), cache).await;
    let claim = server.get_json(CLAIMS, "default", "data").unwrap();
    assert!(claim["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty), "{claim}");
}
