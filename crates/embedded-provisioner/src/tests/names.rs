//! PersistentVolumes that have the name of a new one.

use rstest::rstest;
use serde_json::{Value, json};
use tonic::Code;
use topolvm_testkit::api_server::Failure;

use super::harness::{Bench, VOLUMES, claim, settle};

/// A PersistentVolume with the name of that of the claim `data`.
#[expect(clippy::needless_pass_by_value, reason = "callers write the JSON in the call")]
fn volume(spec: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pvc-uid-data"}, "spec": spec})
}

#[rstest]
#[case::other_driver(json!({"csi": {"driver": "ebs.example", "volumeHandle": "v"}}))]
#[case::no_driver(json!({"hostPath": {"path": "/"}}))]
#[case::other_claim(json!({
    "csi": {"driver": "topolvm.io", "volumeHandle": "v"},
    "claimRef": {"namespace": "default", "name": "other", "uid": "other"},
}))]
#[tokio::test(start_paused = true)]
async fn taken_name_is_reported_and_no_volume_is_created(#[case] spec: Value) {
    let bench = Bench::start().await;
    bench.server.apply_json(volume(spec));
    settle().await;
    bench.apply(claim("data", json!({}))).await;
    let notes = bench.server.event_notes("ProvisioningFailed");
    assert!(notes[0].contains("PersistentVolume pvc-uid-data exists and is not of this claim; delete it"), "{notes:?}");
    assert_eq!((bench.created(), bench.server.count("get", VOLUMES)), (0, 0));
    // No pause has to end
    bench.server.delete(VOLUMES, "", "pvc-uid-data");
    settle().await;
    assert_eq!((bench.created(), bench.deleted()), (1, vec![]));
    assert_eq!(bench.volume("pvc-uid-data").unwrap()["spec"]["claimRef"]["uid"], "uid-data");
}

#[tokio::test(start_paused = true)]
async fn new_volume_is_deleted_if_its_name_is_taken_meanwhile() {
    let bench = Bench::start().await;
    let foreign = volume(json!({"csi": {"driver": "ebs.example", "volumeHandle": "v"}, "claimRef": {"uid": "other"}}));
    bench.server.before_next("create", VOLUMES, move |server| drop(server.apply_json(&foreign)));
    bench.apply(claim("data", json!({}))).await;
    assert_eq!((bench.created(), bench.deleted()), (1, vec!["id-pvc-uid-data".to_owned()]));
    tokio::time::sleep(std::time::Duration::from_mins(30)).await;
    assert_eq!((bench.created(), bench.deleted().len()), (1, 1));
    let notes = bench.server.event_notes("ProvisioningFailed");
    assert!(
        notes.iter().any(|note| note.contains("pvc-uid-data exists and is not of this claim; delete it")),
        "{notes:?}"
    );
    assert_eq!(bench.volume("pvc-uid-data").unwrap()["spec"]["csi"]["driver"], "ebs.example");
    assert!(bench.claim("data")["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty));
}

#[tokio::test(start_paused = true)]
async fn deletion_of_a_volume_whose_name_is_taken_is_repeated() {
    let bench = Bench::start().await;
    let foreign = volume(json!({"hostPath": {"path": "/"}}));
    bench.server.before_next("create", VOLUMES, move |server| drop(server.apply_json(&foreign)));
    bench.driver.deletion_errors.lock().extend([Code::Internal; 5]);
    bench.apply(claim("data", json!({}))).await;
    assert_eq!((bench.created(), bench.deleted().len()), (1, 5));
    tokio::time::sleep(std::time::Duration::from_mins(30)).await;
    assert_eq!((bench.created(), bench.deleted().len()), (2, 6));
}

/// The volume existed before: a backup tool has restored its PersistentVolume.
#[rstest]
#[case::same_name("pvc-uid-data")]
#[case::other_name("restored")]
#[tokio::test(start_paused = true)]
async fn volume_with_a_persistent_volume_is_never_deleted(#[case] name: &'static str) {
    let bench = Bench::start().await;
    bench.server.before_next("create", VOLUMES, move |server| {
        let csi = json!({"driver": "topolvm.io", "volumeHandle": "id-pvc-uid-data"});
        let mut restored = volume(json!({"csi": csi, "claimRef": {"uid": "other"}}));
        restored["metadata"]["name"] = json!(name);
        server.apply_json(&restored);
        server.apply_json(volume(restored["spec"].clone()));
        if name != "pvc-uid-data" {
            server.edit(VOLUMES, "", "pvc-uid-data", |taken| taken["spec"]["csi"]["volumeHandle"] = json!("foreign"));
        }
    });
    bench.apply(claim("data", json!({}))).await;
    tokio::time::sleep(std::time::Duration::from_mins(30)).await;
    assert_eq!((bench.created(), bench.deleted()), (1, vec![]));
    let notes = bench.server.event_notes("ProvisioningFailed");
    assert!(notes.iter().any(|note| note.contains(&format!("PersistentVolume {name} refers to it"))), "{notes:?}");
}

#[tokio::test(start_paused = true)]
async fn conflicting_volume_that_is_gone_is_replaced() {
    let bench = Bench::start().await;
    bench.server.inject("create", VOLUMES, 1, Failure::Status(409));
    bench.apply(claim("data", json!({}))).await;
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    assert_eq!((bench.volume("pvc-uid-data").is_some(), bench.deleted()), (true, vec![]));
}
