//! Objects that a backup tool has restored: the UID is new, and the LV is that of the earlier object.

use rstest::rstest;
use serde_json::{Value, json};
use topolvm_node::reconcile::ReconcileError;
use topolvm_testkit::lvm::FakeVolume;

use crate::cluster::{Cluster, GIB, LV, fresh};
use crate::lvmd_process::VG;

const OLD: &str = "0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a";
const NEW: &str = "2b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a";
const OTHER: &str = "3b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a";

/// Starts a cluster with an LV of an object `pvc-1` that is gone.
async fn cluster_with_lv() -> Cluster {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").uid(OLD).build());
    cluster.reconcile("pvc-1").await.unwrap();
    cluster.api.edit(LV, "", "pvc-1", |object| *object.pointer_mut("/metadata/finalizers").unwrap() = json!([]));
    cluster.api.delete(LV, "", "pvc-1");
    cluster
}

fn persistent_volume(handle: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pvc-1"},
        "spec": {"csi": {"driver": "topolvm.io", "volumeHandle": handle}},
    })
}

/// Reconciles `pvc-1`, which must wait, and returns the message in its status.
async fn wait_message(cluster: &Cluster) -> String {
    let error = cluster.reconcile("pvc-1").await.unwrap_err();
    assert!(matches!(error, ReconcileError::HasPredecessor(_)), "{error}");
    let status = cluster.status("pvc-1");
    assert_eq!((&status["code"], status.get("volumeID")), (&json!(6), None));
    status["message"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn restored_status_keeps_its_lv_until_deletion() {
    let cluster = cluster_with_lv().await;
    cluster.api.apply_json(fresh("pvc-1").uid(NEW).ready(OLD, "1Gi").build());
    cluster.reconcile("pvc-1").await.unwrap();
    cluster.resize("pvc-1", "2Gi");
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.status("pvc-1"), json!({"volumeID": OLD, "currentSize": "2Gi"}));
    assert_eq!(cluster.lvm.volumes(VG), [OLD]);
    cluster.api.delete(LV, "", "pvc-1");
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.lvm.volumes(VG), [""; 0]);
    assert_eq!(cluster.api.get_json(LV, "", "pvc-1"), None);
}

#[tokio::test]
async fn deletion_removes_the_restored_and_the_own_lv() {
    let cluster = cluster_with_lv().await;
    cluster.lvm.add_volume(VG, NEW, FakeVolume::thick(GIB));
    cluster.api.apply_json(fresh("pvc-1").uid(NEW).ready(OLD, "1Gi").build());
    cluster.api.delete(LV, "", "pvc-1");
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.lvm.volumes(VG), [""; 0]);
}

#[rstest]
#[case::by_uid(fresh("pvc-2").uid(OLD).ready(OLD, "1Gi").build())]
#[case::by_volume_id(fresh("pvc-2").uid(OTHER).ready(OLD, "1Gi").build())]
#[tokio::test]
async fn deletion_keeps_an_lv_that_another_object_has(#[case] owner: topolvm_api::LogicalVolume) {
    let cluster = cluster_with_lv().await;
    cluster.api.apply_json(owner);
    cluster.api.apply_json(fresh("pvc-1").uid(NEW).ready(OLD, "1Gi").build());
    cluster.api.delete(LV, "", "pvc-1");
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.lvm.volumes(VG), [OLD]);
    assert_eq!(cluster.api.get_json(LV, "", "pvc-1"), None);
}

#[tokio::test]
async fn deletion_of_all_objects_of_an_lv_removes_it() {
    let cluster = cluster_with_lv().await;
    for (name, uid) in [("pvc-1", NEW), ("pvc-2", OTHER)] {
        cluster.api.apply_json(fresh(name).uid(uid).ready(OLD, "1Gi").build());
        cluster.api.delete(LV, "", name);
    }
    cluster.reconcile("pvc-1").await.unwrap();
    cluster.reconcile("pvc-2").await.unwrap();
    assert_eq!(cluster.lvm.volumes(VG), [""; 0]);
    assert_eq!(cluster.api.get_json(LV, "", "pvc-2"), None);
}

#[tokio::test]
async fn deletion_keeps_an_lv_that_no_object_created() {
    let cluster = Cluster::start().await;
    cluster.lvm.add_volume(VG, "data", FakeVolume::thick(GIB));
    cluster.api.apply_json(fresh("pvc-1").uid(NEW).ready("data", "1Gi").build());
    cluster.api.delete(LV, "", "pvc-1");
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.lvm.volumes(VG), ["data"]);
    assert_eq!(cluster.api.get_json(LV, "", "pvc-1"), None);
}

#[tokio::test]
async fn object_without_status_waits_for_the_lv_of_its_name() {
    let cluster = cluster_with_lv().await;
    cluster.api.apply_json(fresh("pvc-1").uid(NEW).sized("1000Mi").build());
    let message = wait_message(&cluster).await;
    assert!(message.contains(&format!("kubectl annotate logicalvolumes.topolvm.io pvc-1 topolvm.io/adopt={OLD}")));
    assert_eq!(wait_message(&cluster).await, message);
    assert_eq!((cluster.lvm.volumes(VG), cluster.lvm.count("lvcreate")), (vec![OLD.to_owned()], 1));
    cluster.api.edit(LV, "", "pvc-1", |object| object["metadata"]["annotations"] = json!({"topolvm.io/adopt": OLD}));
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.status("pvc-1"), json!({"volumeID": NEW, "currentSize": "1Gi"}));
    assert_eq!((cluster.lvm.volumes(VG), cluster.lvm.count("lvcreate")), (vec![NEW.to_owned()], 1));
}

#[rstest]
#[case::tagged(true)]
#[case::of_topolvm(false)]
#[tokio::test]
async fn lv_of_a_persistent_volume_keeps_its_name(#[case] is_tagged: bool) {
    let cluster = cluster_with_lv().await;
    if !is_tagged {
        cluster.lvm.edit_volume(VG, OLD, |volume| volume.tags.clear());
    }
    cluster.api.apply_json(persistent_volume(OLD));
    cluster.api.apply_json(fresh("pvc-1").uid(NEW).build());
    let message = wait_message(&cluster).await;
    assert!(message.contains(&format!("kubectl annotate logicalvolumes.topolvm.io pvc-1 topolvm.io/adopt={OLD}")));
    assert!(!message.contains("orphans delete"), "{message}");
    cluster.api.edit(LV, "", "pvc-1", |object| object["metadata"]["annotations"] = json!({"topolvm.io/adopt": OLD}));
    // A new name would be one that the PersistentVolume does not know
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.status("pvc-1"), json!({"volumeID": OLD, "currentSize": "1Gi"}));
    assert_eq!(cluster.lvm.volumes(VG), [OLD]);
}

#[tokio::test]
async fn waiting_object_is_deleted_without_the_lv() {
    let cluster = cluster_with_lv().await;
    cluster.api.apply_json(fresh("pvc-1").uid(NEW).build());
    wait_message(&cluster).await;
    cluster.api.delete(LV, "", "pvc-1");
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.lvm.volumes(VG), [OLD]);
    assert_eq!(cluster.api.get_json(LV, "", "pvc-1"), None);
}

#[tokio::test]
async fn waiting_object_gets_a_new_lv_when_the_other_is_removed() {
    let cluster = cluster_with_lv().await;
    cluster.api.apply_json(fresh("pvc-1").uid(NEW).build());
    wait_message(&cluster).await;
    cluster.lvm.remove_volume(VG, OLD);
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.status("pvc-1"), json!({"volumeID": NEW, "currentSize": "1Gi"}));
}

#[tokio::test]
async fn lv_of_another_object_is_no_reason_to_wait() {
    let cluster = cluster_with_lv().await;
    cluster.api.apply_json(fresh("pvc-2").uid(OTHER).ready(OLD, "1Gi").build());
    cluster.api.apply_json(fresh("pvc-1").uid(NEW).build());
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.lvm.volumes(VG), [OLD, NEW]);
}
