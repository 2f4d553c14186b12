use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};
use topolvm_proto::csi::VolumeContentSource;
use topolvm_proto::csi::volume_content_source::{SnapshotSource, Type, VolumeSource};

use super::driver::Answer;
use super::harness::{Bench, CLAIMS, claim, settle};

const CLONING: &str = "provisioner.storage.kubernetes.io/cloning-protection";
const RESTORING: &str = "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection";
const SNAPSHOTS: &str = "volumesnapshots";
const GROUP: &str = "snapshot.storage.k8s.io";

fn clone_of_source() -> Value {
    json!({"spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": "source"}}})
}

fn restored() -> Value {
    json!({"spec": {"dataSource": {"apiGroup": GROUP, "kind": "VolumeSnapshot", "name": "s"}}})
}

/// A bound claim with its volume, changed at these pointers.
fn apply_source(bench: &Bench, changes: &[(&str, Value)]) {
    let mut objects = json!({
        "claim": claim("source", json!({"spec": {"volumeName": "pv"}, "status": {"phase": "Bound"}})),
        "volume": {
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv"},
            "spec": {
                "persistentVolumeReclaimPolicy": "Retain", "volumeMode": "Filesystem",
                "csi": {"driver": "topolvm.io", "volumeHandle": "id-source"},
                "claimRef": {"namespace": "default", "name": "source", "uid": "uid-source"},
            },
            "status": {"phase": "Bound"},
        },
    });
    for (pointer, value) in changes {
        *objects.pointer_mut(pointer).unwrap() = value.clone();
    }
    bench.server.apply_json(&objects["claim"]);
    bench.server.apply_json(&objects["volume"]);
}

/// A snapshot with its content, changed at these pointers.
fn apply_snapshot(bench: &Bench, changes: &[(&str, Value)]) {
    let mut objects = json!({
        "snapshot": {
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
            "metadata": {"name": "s", "namespace": "default", "uid": "uid-s", "finalizers": []},
            "status": {"boundVolumeSnapshotContentName": "content", "readyToUse": true, "restoreSize": "1Gi"},
        },
        "content": {
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": {"name": "content", "annotations": {}},
            "spec": {
                "driver": "topolvm.io", "sourceVolumeMode": "Filesystem",
                "volumeSnapshotRef": {"namespace": "default", "name": "s", "uid": "uid-s"},
            },
            "status": {"snapshotHandle": "id-s"},
        },
    });
    for (pointer, value) in changes {
        *objects.pointer_mut(pointer).unwrap() = value.clone();
    }
    bench.server.apply_json(&objects["snapshot"]);
    bench.server.apply_json(&objects["content"]);
}

fn source(bench: &Bench) -> Option<Type> {
    let request = bench.driver.created.lock().last()?.clone();
    request.volume_content_source.and_then(|VolumeContentSource { r#type }| r#type)
}

#[tokio::test(start_paused = true)]
async fn clone_names_the_volume_of_its_source_and_protects_it() {
    let bench = Bench::start().await;
    apply_source(&bench, &[]);
    bench.apply(claim("copy", clone_of_source())).await;
    assert_eq!(source(&bench), Some(Type::Volume(VolumeSource { volume_id: "id-source".to_owned() })));
    assert_eq!(bench.claim("source")["metadata"]["finalizers"], json!([CLONING]));
    // It is released only when it is deleted and no clone waits
    bench.server.delete(CLAIMS, "default", "source");
    settle().await;
    assert!(bench.claim("source")["metadata"]["deletionTimestamp"].is_string());
    let bound = json!({"spec": {"volumeName": "pvc-uid-copy", "dataSource": clone_of_source()["spec"]["dataSource"]}});
    bench.apply(claim("copy", bound)).await;
    assert_eq!(bench.server.get_json(CLAIMS, "default", "source"), None);
}

#[tokio::test(start_paused = true)]
async fn release_of_a_clone_source_is_repeated() {
    let bench = Bench::start().await;
    apply_source(&bench, &[]);
    bench.server.edit(CLAIMS, "default", "source", |claim| claim["metadata"]["finalizers"] = json!([CLONING]));
    bench.server.fail_next("patch", CLAIMS, 1, 500);
    bench.server.delete(CLAIMS, "default", "source");
    settle().await;
    assert!(bench.server.get_json(CLAIMS, "default", "source").is_some());
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(bench.server.get_json(CLAIMS, "default", "source"), None);
}

#[rstest]
#[case::not_bound(&[("/claim/status/phase", json!("Pending"))], "is not bound")]
#[case::released(&[("/volume/status/phase", json!("Released"))], "is not bound")]
#[case::of_another_claim(&[("/volume/spec/claimRef/uid", json!("other"))], "does not refer to it")]
#[case::other_driver(&[("/volume/spec/csi/driver", json!("ebs.example"))], "the driver ebs.example")]
#[case::larger(&[("/claim/spec/resources/requests/storage", json!("2Gi"))], "has 2147483648 bytes")]
#[case::device(&[("/volume/spec/volumeMode", json!("Block"))], "the volume mode Block")]
#[case::without_class(&[("/claim/spec/storageClassName", Value::Null)], "no StorageClass")]
#[tokio::test(start_paused = true)]
async fn clone_source_is_refused(#[case] changes: &[(&str, Value)], #[case] problem: &str) {
    let bench = Bench::start().await;
    apply_source(&bench, changes);
    bench.apply(claim("copy", clone_of_source())).await;
    let notes = bench.server.event_notes("ProvisioningFailed");
    assert!(notes.iter().any(|note| note.contains(problem)), "{notes:?}");
    assert_eq!((bench.created(), &bench.claim("source")["metadata"]["finalizers"]), (0, &Value::Null));
}

#[tokio::test(start_paused = true)]
async fn restored_volume_names_the_snapshot_and_protects_it_meanwhile() {
    let bench = Bench::start().await;
    apply_snapshot(&bench, &[]);
    bench.driver.answer(&[Answer::Fails(tonic::Code::Aborted)]);
    bench.apply(claim("copy", restored())).await;
    assert_eq!(source(&bench), Some(Type::Snapshot(SnapshotSource { snapshot_id: "id-s".to_owned() })));
    let finalizers =
        |bench: &Bench| bench.server.get_json(SNAPSHOTS, "default", "s").unwrap()["metadata"]["finalizers"].clone();
    assert_eq!(finalizers(&bench), json!([RESTORING]));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(bench.volume("pvc-uid-copy").is_some());
    assert!(finalizers(&bench).as_array().is_none_or(Vec::is_empty), "{}", finalizers(&bench));
}

#[rstest]
#[case::not_ready(&[("/snapshot/status/readyToUse", json!(false))], "is not ready")]
#[case::without_handle(&[("/content/status/snapshotHandle", Value::Null)], "is not ready")]
#[case::not_bound(&[("/snapshot/status/boundVolumeSnapshotContentName", Value::Null)], "is not bound")]
#[case::without_content(&[("/snapshot/status/boundVolumeSnapshotContentName", json!("gone"))], "is not bound")]
#[case::of_another(&[("/content/spec/volumeSnapshotRef/uid", json!("other"))], "does not refer to it")]
#[case::other_driver(&[("/content/spec/driver", json!("ebs.example"))], "the driver ebs.example")]
#[case::larger(&[("/snapshot/status/restoreSize", json!("1025Mi"))], "has 1074790400 bytes")]
#[case::other_mode(&[("/content/spec/sourceVolumeMode", json!("Block"))], "allow-volume-mode-change")]
#[tokio::test(start_paused = true)]
async fn snapshot_source_is_refused(#[case] changes: &[(&str, Value)], #[case] problem: &str) {
    let bench = Bench::start().await;
    apply_snapshot(&bench, changes);
    bench.apply(claim("copy", restored())).await;
    let notes = bench.server.event_notes("ProvisioningFailed");
    assert!(notes.iter().any(|note| note.contains(problem)), "{notes:?}");
    assert_eq!((bench.created(), bench.server.count("patch", SNAPSHOTS)), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn snapshot_mode_may_change_with_the_annotation() {
    let bench = Bench::start().await;
    let allowed = json!({"snapshot.storage.kubernetes.io/allow-volume-mode-change": "true"});
    let changes = [("/content/spec/sourceVolumeMode", json!("Block")), ("/content/metadata/annotations", allowed)];
    apply_snapshot(&bench, &changes);
    bench.apply(claim("copy", restored())).await;
    assert!(bench.volume("pvc-uid-copy").is_some());
}

#[rstest]
#[case::new(json!(["other/one"]), 0)]
#[case::begun(json!(["other/one", RESTORING]), 1)]
#[tokio::test(start_paused = true)]
async fn deleted_snapshot_is_restored_if_that_had_begun(#[case] finalizers: Value, #[case] created: usize) {
    let bench = Bench::start().await;
    apply_snapshot(&bench, &[("/snapshot/metadata/finalizers", finalizers)]);
    bench.server.delete(SNAPSHOTS, "default", "s");
    bench.apply(claim("copy", restored())).await;
    assert_eq!(bench.created(), created, "{:?}", bench.events());
}

#[rstest]
#[case::own("topolvm.io", true)]
#[case::of_another_driver("ebs.example", false)]
#[tokio::test(start_paused = true)]
async fn protected_snapshot_is_released_when_no_claim_waits(#[case] driver: &str, #[case] is_released: bool) {
    let bench = Bench::start().await;
    let finalizers = json!([RESTORING]);
    let changes = [("/snapshot/metadata/finalizers", finalizers.clone()), ("/content/spec/driver", json!(driver))];
    apply_snapshot(&bench, &changes);
    bench.driver.answer(&vec![Answer::Fails(tonic::Code::Internal); 100]);
    bench.apply(claim("copy", restored())).await;
    let found = || bench.server.get_json(SNAPSHOTS, "default", "s").unwrap()["metadata"]["finalizers"].clone();
    tokio::time::sleep(Duration::from_mins(11)).await;
    assert_eq!(found(), finalizers);
    bench.server.delete(CLAIMS, "default", "copy");
    tokio::time::sleep(Duration::from_mins(6)).await;
    assert_eq!(found().as_array().is_none_or(Vec::is_empty), is_released, "{}", found());
}

#[tokio::test(start_paused = true)]
async fn copy_without_contents_is_deleted_and_requested_again() {
    let bench = Bench::start().await;
    apply_source(&bench, &[]);
    bench.driver.answer(&[Answer::NotCopied]);
    bench.apply(claim("copy", clone_of_source())).await;
    assert_eq!((bench.deleted(), bench.volume("pvc-uid-copy")), (vec!["id-pvc-uid-copy".to_owned()], None));
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(bench.volume("pvc-uid-copy").is_some());
}
