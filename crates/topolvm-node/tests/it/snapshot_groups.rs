//! Groups of snapshots, which the reconciler takes together.

use serde_json::{Value, json};
use topolvm_api::ApiFlavor;
use topolvm_node::reconcile::ReconcileError;
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::{LogicalVolumeBuilder, logical_volume};
use topolvm_testkit::lvm::{FakeLvm, FakeVolume, Fault};

use crate::cluster::{Cluster, FINALIZER, GIB, LV, reconciler};
use crate::lvmd_process::{LvmdProcess, THIN_CLASS, VG};

/// A cluster whose node `n1` has the thin volumes `u8` and `u9` of 1 GiB, of the objects `pvc-8` and `pvc-9`.
async fn with_volumes() -> Cluster {
    let lvm = FakeLvm::new().with_group(VG, 10 * GIB);
    let api = ApiServer::new();
    lvm.add_volume(VG, "pool", FakeVolume::thin_pool(5 * GIB));
    for (name, lv) in [("pvc-8", "u8"), ("pvc-9", "u9")] {
        lvm.add_volume(VG, lv, FakeVolume::thin(GIB, "pool"));
        api.apply_json(logical_volume(name).uid(lv).ready(lv, "1Gi").build());
    }
    let lvmd = LvmdProcess::start(&lvm, THIN_CLASS).await;
    Cluster { reconciler: reconciler(&api, lvmd.client()), api, lvm, lvmd }
}

/// A snapshot of a group of two, as the controller creates it.
fn member(number: usize, source: &str) -> LogicalVolumeBuilder {
    logical_volume(&format!("g-{number}"))
        .uid(&format!("s{number}"))
        .finalizer(FINALIZER)
        .label("app.kubernetes.io/created-by", "topolvm-controller")
        .annotation(ApiFlavor::TopoLvm.snapshot_group(), "g")
        .annotation(ApiFlavor::TopoLvm.snapshot_group_size(), "2")
        .from_source(source, "ro")
}

/// The same cluster with the objects of a group.
async fn with_group() -> Cluster {
    let cluster = with_volumes().await;
    cluster.api.apply_json(member(0, "pvc-8").build());
    cluster.api.apply_json(member(1, "pvc-9").build());
    cluster
}

fn condition(object: &Value) -> Option<&Value> {
    let conditions = object["status"]["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == "TakenTogether")
}

#[tokio::test]
async fn group_is_taken_in_one_step_by_its_first_member() {
    let cluster = with_group().await;
    cluster.reconcile("g-1").await.unwrap();
    assert_eq!(cluster.status("g-1"), Value::Null);
    cluster.reconcile("g-0").await.unwrap();
    for (name, lv, source) in [("g-0", "s0", "u8"), ("g-1", "s1", "u9")] {
        assert_eq!(cluster.status(name), json!({"volumeID": lv, "currentSize": "1Gi"}));
        assert_eq!(condition(&cluster.object(name)).map(|condition| &condition["status"]), Some(&json!("True")));
        let snapshot = cluster.lvm.volume(VG, lv).unwrap();
        assert!(snapshot.attr.starts_with("Vri"), "{}", snapshot.attr);
        assert!(snapshot.tags.contains(&format!("topolvm.io/logicalvolume={name}")), "{:?}", snapshot.tags);
        assert_eq!(snapshot.origin.as_deref(), Some(source));
    }
    cluster.reconcile("g-1").await.unwrap();
    assert_eq!(cluster.lvm.count("lvcreate"), 2);
}

#[tokio::test]
async fn group_waits_until_all_members_exist() {
    let cluster = with_volumes().await;
    cluster.api.apply_json(member(0, "pvc-8").build());
    let error = cluster.reconcile("g-0").await.unwrap_err();
    assert!(matches!(&error, ReconcileError::GroupIncomplete(name) if name == "g-1"), "{error}");
    assert_eq!(cluster.lvm.count("lvcreate"), 0);
    cluster.api.apply_json(member(1, "pvc-9").build());
    cluster.reconcile("g-0").await.unwrap();
    assert_eq!(cluster.status("g-1")["volumeID"], "s1");
}

#[tokio::test]
async fn group_waits_for_a_member_that_is_being_replaced() {
    let cluster = with_group().await;
    cluster.api.delete(LV, "", "g-1");
    cluster.reconcile("g-0").await.unwrap_err();
    assert_eq!(cluster.lvm.count("lvcreate"), 0);
}

#[tokio::test]
async fn group_is_not_taken_twice_after_a_lost_answer() {
    let mut cluster = with_group().await;
    // The second member has its status, and the first one has not
    cluster.api.before_next("patch", LV, |api| api.fail_next("patch", LV, 1, 503));
    cluster.reconcile("g-0").await.unwrap_err();
    cluster.restart_agent();
    cluster.reconcile("g-0").await.unwrap();
    assert_eq!(cluster.status("g-0")["volumeID"], "s0");
    assert_eq!(cluster.status("g-1")["volumeID"], "s1");
    assert_eq!(cluster.lvm.count("lvcreate"), 2);
}

#[tokio::test]
async fn group_that_fails_has_the_failure_in_every_member() {
    let cluster = with_group().await;
    cluster.lvm.fail("lvcreate", 2, Fault::says("device-mapper: message ioctl failed"));
    cluster.reconcile("g-0").await.unwrap();
    for name in ["g-0", "g-1"] {
        let status = cluster.status(name);
        assert!(status["message"].as_str().is_some_and(|message| message.contains("ioctl failed")), "{status}");
        assert_eq!((&status["volumeID"], condition(&cluster.object(name))), (&Value::Null, None));
    }
    assert_eq!(cluster.lvm.volumes(VG), ["pool", "u8", "u9"]);
}

#[tokio::test]
async fn group_of_a_source_that_cannot_be_copied_fails_before_lvm() {
    let cluster = with_volumes().await;
    cluster.api.apply_json(member(0, "pvc-8").build());
    cluster.api.apply_json(member(1, "pvc-0").build());
    cluster.reconcile("g-0").await.unwrap();
    assert_eq!((&cluster.status("g-0")["code"], &cluster.status("g-1")["code"]), (&json!(5), &json!(5)));
    assert_eq!(cluster.lvm.count("lvcreate"), 0);
}

#[tokio::test]
async fn group_member_keeps_its_moment_in_later_writes_of_its_status() {
    let cluster = with_group().await;
    cluster.reconcile("g-0").await.unwrap();
    let before = condition(&cluster.object("g-0")).cloned();
    cluster.resize("g-0", "2Gi");
    cluster.reconcile("g-0").await.unwrap();
    assert_eq!(cluster.status("g-0")["currentSize"], "2Gi");
    assert_eq!(condition(&cluster.object("g-0")).cloned(), before);
}
