//! Objects that are deleted while a PersistentVolume or VolumeSnapshotContent refers to their volume.

use rstest::rstest;
use serde_json::{Value, json};
use topolvm_node::reconcile::ReconcileError;
use topolvm_testkit::api_server::Kind;

use crate::cluster::{Cluster, LV, fresh};
use crate::lvmd_process::VG;

const UID: &str = "0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a";
const PV: &str = "persistentvolumes";
const CONTENT: &str = "volumesnapshotcontents.snapshot.storage.k8s.io";

/// Starts a cluster with a volume `name`.
async fn cluster_with(name: &str) -> Cluster {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(fresh(name).uid(UID).build());
    cluster.reconcile(name).await.unwrap();
    cluster
}

fn persistent_volume(name: &str, policy: &str, phase: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
        "spec": {
            "csi": {"driver": "topolvm.io", "volumeHandle": UID}, "persistentVolumeReclaimPolicy": policy,
            "claimRef": {"namespace": "shop", "name": "data"},
        },
        "status": {"phase": phase},
    })
}

fn snapshot_content(name: &str, policy: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent", "metadata": {"name": name},
        "spec": {"driver": "topolvm.io", "deletionPolicy": policy, "source": {"volumeHandle": "v"}},
        "status": {"snapshotHandle": UID},
    })
}

fn serve_snapshots(cluster: &Cluster) {
    let kind = Kind::cluster_scoped("snapshot.storage.k8s.io", "v1", "VolumeSnapshotContent", "volumesnapshotcontents");
    cluster.api.serve(kind.with_status());
}

fn delete(cluster: &Cluster, name: &str) {
    cluster.api.delete(LV, "", name);
}

/// Reconciles a deleted object, which must wait, and returns its condition.
async fn blocked(cluster: &Cluster, name: &str) -> Value {
    let error = cluster.reconcile(name).await.unwrap_err();
    assert!(matches!(error, ReconcileError::Referenced(_)), "{error}");
    assert_eq!(cluster.lvm.volumes(VG), [UID]);
    let object = cluster.object(name);
    let conditions = object["status"]["conditions"].as_array().unwrap();
    conditions.iter().find(|condition| condition["type"] == "Removed").unwrap().clone()
}

async fn assert_removed(cluster: &Cluster, name: &str) {
    cluster.reconcile(name).await.unwrap();
    assert_eq!(cluster.lvm.volumes(VG), [""; 0]);
    assert_eq!(cluster.api.get_json(LV, "", name), None);
}

#[rstest]
#[case::named_by_csi_provisioner("pvc-1", "Delete", "Bound")]
#[case::named_by_an_administrator("archive", "Delete", "Bound")]
#[case::available("archive", "Delete", "Available")]
#[case::kept_by_retain("pvc-1", "Retain", "Released")]
#[tokio::test]
async fn lv_stays_while_a_persistent_volume_refers_to_it(
    #[case] name: &str,
    #[case] policy: &str,
    #[case] phase: &str,
) {
    let cluster = cluster_with("pvc-1").await;
    cluster.api.apply_json(persistent_volume(name, policy, phase));
    delete(&cluster, "pvc-1");
    let condition = blocked(&cluster, "pvc-1").await;
    assert_eq!((&condition["status"], &condition["reason"]), (&json!("False"), &json!("PersistentVolumeExists")));
    let message = condition["message"].as_str().unwrap();
    assert!(message.starts_with(&format!("PersistentVolume {name} of claim shop/data refers to the volume")));
    assert!(message.contains("kubectl topolvm undelete pvc-1"), "{message}");
    assert_eq!(blocked(&cluster, "pvc-1").await, condition);
    let events = cluster.api.list_json("events.events.k8s.io");
    assert_eq!(events.iter().filter(|event| event["reason"] == "RemovalBlocked").count(), 1);
    cluster.api.delete(PV, "", name);
    assert_removed(&cluster, "pvc-1").await;
}

#[rstest]
#[case::released("Released")]
#[case::failed("Failed")]
#[tokio::test]
async fn lv_goes_with_its_persistent_volume_in_one_request(#[case] phase: &str) {
    let cluster = cluster_with("pvc-1").await;
    cluster.api.apply_json(persistent_volume("pvc-1", "Delete", phase));
    delete(&cluster, "pvc-1");
    cluster.api.clear_requests();
    assert_removed(&cluster, "pvc-1").await;
    assert_eq!((cluster.api.count("get", PV), cluster.api.count("list", PV)), (1, 0));
}

#[tokio::test]
async fn lv_of_no_persistent_volume_is_removed() {
    let cluster = cluster_with("pvc-1").await;
    let mut other = persistent_volume("pvc-1", "Delete", "Bound");
    other["spec"]["csi"]["driver"] = json!("topolvm.cybozu.com");
    cluster.api.apply_json(other);
    delete(&cluster, "pvc-1");
    assert_removed(&cluster, "pvc-1").await;
}

#[rstest]
#[case::not_answering("get", 503)]
#[case::not_allowed("get", 403)]
#[case::not_listing("list", 500)]
#[tokio::test]
async fn lv_stays_while_references_cannot_be_read(#[case] verb: &str, #[case] code: u16) {
    let cluster = cluster_with("pvc-1").await;
    delete(&cluster, "pvc-1");
    cluster.api.fail_next(verb, PV, 1, code);
    assert!(matches!(cluster.reconcile("pvc-1").await, Err(ReconcileError::Api { .. })));
    assert_eq!(cluster.lvm.volumes(VG), [UID]);
    assert_removed(&cluster, "pvc-1").await;
}

#[tokio::test]
async fn lv_of_a_failed_attempt_is_removed_without_a_question() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").uid(UID).sized("100Gi").build());
    cluster.reconcile("pvc-1").await.unwrap();
    delete(&cluster, "pvc-1");
    cluster.api.clear_requests();
    assert_removed(&cluster, "pvc-1").await;
    assert_eq!(cluster.api.count("get", PV) + cluster.api.count("list", PV), 0);
}

#[rstest]
#[case::named_by_snapshot_controller("snapcontent-7")]
#[case::named_by_an_administrator("nightly")]
#[tokio::test]
async fn snapshot_stays_while_a_content_refers_to_it(#[case] content: &str) {
    let cluster = cluster_with("snapshot-7").await;
    serve_snapshots(&cluster);
    cluster.api.edit(LV, "", "snapshot-7", |object| {
        object["spec"]["source"] = json!("pvc-1");
        object["spec"]["accessType"] = json!("ro");
    });
    cluster.api.apply_json(snapshot_content(content, "Delete"));
    delete(&cluster, "snapshot-7");
    let condition = blocked(&cluster, "snapshot-7").await;
    assert_eq!(condition["reason"], "VolumeSnapshotContentExists");
    // csi-snapshotter has a finalizer on it while it asks for the deletion
    cluster.api.edit(CONTENT, "", content, |object| object["metadata"]["finalizers"] = json!(["example.com/it"]));
    cluster.api.delete(CONTENT, "", content);
    assert_removed(&cluster, "snapshot-7").await;
}

/// snapshot-controller keeps the contents of a group until csi-snapshotter has had the group deleted.
#[tokio::test]
async fn snapshot_of_a_deleted_group_is_removed_before_its_content() {
    let cluster = cluster_with("group-7-0").await;
    serve_snapshots(&cluster);
    cluster.api.edit(LV, "", "group-7-0", |object| {
        object["spec"]["source"] = json!("pvc-1");
        object["spec"]["accessType"] = json!("ro");
        object["metadata"]["annotations"] = json!({"topolvm.io/snapshot-group-deleted": "true"});
    });
    cluster.api.apply_json(snapshot_content("snapcontent-7", "Delete"));
    delete(&cluster, "group-7-0");
    assert_removed(&cluster, "group-7-0").await;
}

#[tokio::test]
async fn snapshot_of_a_cluster_without_contents_is_removed() {
    let cluster = cluster_with("snapshot-7").await;
    cluster.api.edit(LV, "", "snapshot-7", |object| {
        object["spec"]["source"] = json!("pvc-1");
        object["spec"]["accessType"] = json!("ro");
    });
    delete(&cluster, "snapshot-7");
    assert_removed(&cluster, "snapshot-7").await;
}
