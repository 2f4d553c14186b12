use std::time::Duration;

use serde_json::{Value, json};
use tonic::Code;
use topolvm_testkit::api_server::Failure;

use super::harness::{Bench, VOLUMES, claim, class, settle};

const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

/// A PersistentVolume that csi-provisioner has made.
fn volume(name: &str, phase: &str, changes: &[(&str, Value)]) -> Value {
    let mut object = json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {
            "name": name, "finalizers": ["kubernetes.io/pv-protection", FINALIZER],
            "annotations": {"pv.kubernetes.io/provisioned-by": "topolvm.io"},
        },
        "spec": {"persistentVolumeReclaimPolicy": "Delete", "storageClassName": "fast",
                 "csi": {"driver": "topolvm.io", "volumeHandle": format!("id-{name}")}},
        "status": {"phase": phase},
    });
    for (pointer, value) in changes {
        *object.pointer_mut(pointer).unwrap() = value.clone();
    }
    object
}

fn finalizers(bench: &Bench, name: &str) -> Value {
    bench.volume(name).unwrap()["metadata"]["finalizers"].clone()
}

#[tokio::test(start_paused = true)]
async fn released_volume_is_deleted_with_two_requests() {
    let bench = Bench::start().await;
    bench.apply(claim("data", json!({}))).await;
    bench.set_phase("pvc-uid-data", "Bound").await;
    bench.server.clear_requests();
    bench.release("data", "pvc-uid-data").await;
    assert_eq!((bench.deleted(), bench.volume("pvc-uid-data")), (vec!["id-pvc-uid-data".to_owned()], None));
    let counts = ["patch", "delete", "*"].map(|verb| bench.server.count(verb, VOLUMES));
    assert_eq!((counts, bench.server.requests().len()), ([1, 1, 2], 2), "{:?}", bench.server.requests());
}

#[tokio::test(start_paused = true)]
async fn volume_of_csi_provisioner_is_deleted_by_its_handle() {
    let bench = Bench::start().await;
    bench.server.apply_json(volume("stock", "Released", &[]));
    settle().await;
    assert_eq!(bench.deleted(), ["id-stock"]);
    // The other finalizer is Kubernetes' own
    assert_eq!(finalizers(&bench, "stock"), json!(["kubernetes.io/pv-protection"]));
    assert!(bench.volume("stock").unwrap()["metadata"]["deletionTimestamp"].is_string());
}

#[tokio::test(start_paused = true)]
async fn volume_deleted_while_bound_goes_when_it_is_released() {
    let bench = Bench::start().await;
    bench.server.apply_json(volume("a", "Bound", &[]));
    bench.server.delete(VOLUMES, "", "a");
    settle().await;
    assert_eq!((bench.deleted(), finalizers(&bench, "a").as_array().unwrap().len()), (vec![], 2));
    bench.set_phase("a", "Released").await;
    assert_eq!(bench.deleted(), ["id-a"]);
    assert_eq!(finalizers(&bench, "a"), json!(["kubernetes.io/pv-protection"]));
}

#[tokio::test(start_paused = true)]
async fn retained_volume_stays_and_loses_the_finalizer() {
    let bench = Bench::start().await;
    bench.server.apply_json(volume("a", "Released", &[("/spec/persistentVolumeReclaimPolicy", json!("Retain"))]));
    settle().await;
    assert_eq!((bench.deleted(), finalizers(&bench, "a")), (vec![], json!(["kubernetes.io/pv-protection"])));
}

#[tokio::test(start_paused = true)]
async fn bound_volume_gets_the_finalizer() {
    let bench = Bench::start().await;
    bench.server.apply_json(volume("a", "Bound", &[("/metadata/finalizers", json!(["kubernetes.io/pv-protection"]))]));
    settle().await;
    assert_eq!(finalizers(&bench, "a"), json!(["kubernetes.io/pv-protection", FINALIZER]));
    assert_eq!(bench.server.count("patch", VOLUMES), 1);
}

#[tokio::test(start_paused = true)]
async fn failed_deletion_is_reported_and_repeated() {
    let bench = Bench::start().await;
    bench.driver.deletion_errors.lock().extend([Code::Internal, Code::DeadlineExceeded]);
    bench.server.apply_json(volume("a", "Released", &[("/metadata/finalizers", json!([FINALIZER]))]));
    settle().await;
    assert_eq!(bench.volume("a").unwrap()["metadata"]["finalizers"], json!([FINALIZER]));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let notes = bench.server.event_notes("VolumeFailedDelete");
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes.iter().any(|note| note.contains("code = DeadlineExceeded")), "{notes:?}");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!((bench.deleted().len(), bench.volume("a")), (3, None));
}

#[tokio::test(start_paused = true)]
async fn object_of_a_deleted_volume_is_deleted_after_any_failure() {
    for (verb, failure) in [
        ("patch", Failure::Status(500)),
        ("patch", Failure::LostAnswer),
        ("delete", Failure::Unreachable),
        ("delete", Failure::LostAnswer),
    ] {
        let bench = Bench::start().await;
        let what = format!("{verb} {failure:?}");
        bench.server.inject(verb, VOLUMES, 1, failure);
        bench.server.apply_json(volume("a", "Released", &[("/metadata/finalizers", json!([FINALIZER]))]));
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(bench.volume("a"), None, "{what}");
        assert!(!bench.deleted().is_empty(), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn finalizer_of_another_client_does_not_prevent_the_deletion() {
    let bench = Bench::start().await;
    bench.server.before_next("patch", VOLUMES, |server| {
        server.edit(VOLUMES, "", "a", |volume| volume["metadata"]["finalizers"] = json!(["other/one", FINALIZER]));
    });
    bench.server.apply_json(volume("a", "Released", &[("/metadata/finalizers", json!([FINALIZER]))]));
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(finalizers(&bench, "a"), json!(["other/one"]));
}

#[tokio::test(start_paused = true)]
async fn volume_without_annotations_uses_the_secret_of_its_class() {
    let bench = Bench::start().await;
    bench.server.apply_json(json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "key", "namespace": "web"}, "data": {"password": "aGVsbG8="}}));
    let parameters = json!({"csi.storage.k8s.io/provisioner-secret-name": "key",
                            "csi.storage.k8s.io/provisioner-secret-namespace": "${pvc.namespace}"});
    bench.server.apply_json(class("locked", json!({"parameters": parameters})));
    settle().await;
    let mut object = volume("a", "Released", &[("/spec/storageClassName", json!("locked"))]);
    object["spec"]["claimRef"] = json!({"namespace": "web", "name": "data", "uid": "1"});
    bench.server.apply_json(object);
    settle().await;
    assert_eq!(bench.driver.deleted.lock()[0].secrets["password"], "hello");
}
