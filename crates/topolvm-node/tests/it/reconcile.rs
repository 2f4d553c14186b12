//! The reconciler over a fake API server and the real lvmd on a fake LVM, one step at a time.

use std::sync::Arc;

use rstest::rstest;
use serde_json::json;
use topolvm_api::LogicalVolume;
use topolvm_node::reconcile::ReconcileError;
use topolvm_testkit::Log;
use topolvm_testkit::api_server::Failure;
use topolvm_testkit::lvm::{FakeVolume, Fault};

use crate::cluster::{Cluster, FINALIZER, GIB, LV, bare, fresh, reconciler};
use crate::lvmd_process::{LvmdProcess, ONE_CLASS, TWO_CLASSES, VG};

#[tokio::test]
async fn a_new_object_gets_its_volume_with_one_write() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").sized("1000Mi").build());
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.lvm.volume(VG, "u1").unwrap().extents, 250);
    assert_eq!(cluster.status("pvc-1"), json!({"volumeID": "u1", "currentSize": "1000Mi"}));
    assert_eq!(cluster.api.count("patch", LV), 1);
}

#[tokio::test]
async fn the_lv_says_which_object_it_belongs_to() {
    let cluster = Cluster::with(TWO_CLASSES).await;
    cluster.api.apply_json(fresh("pvc-1").class("ssd").build());
    cluster.reconcile("pvc-1").await.unwrap();
    let tags = cluster.lvm.volume(VG, "u1").unwrap().tags;
    let expected = ["topolvm.io/logicalvolume=pvc-1", "topolvm.io/device-class=ssd", "topolvm.io/created=1735689600"];
    assert_eq!(tags, [&expected[..], &["topolvm.io/managed-by=lvmd"]].concat());
}

#[tokio::test]
async fn the_real_size_is_reported() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").sized("4100Ki").build());
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.status("pvc-1"), json!({"volumeID": "u1", "currentSize": "8Mi"}));
}

#[tokio::test]
async fn finalizer_and_label_are_added_in_one_write_and_work_goes_on() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(bare("pvc-1").finalizer("other/one").build());
    cluster.reconcile("pvc-1").await.unwrap();
    let object = cluster.object("pvc-1");
    assert_eq!(object.pointer("/metadata/finalizers"), Some(&json!(["other/one", FINALIZER])));
    assert_eq!(
        object.pointer("/metadata/labels"),
        Some(&json!({"app.kubernetes.io/created-by": "topolvm-controller"}))
    );
    assert_eq!(object.pointer("/status/volumeID"), Some(&json!("u1")));
    assert_eq!(cluster.api.count("patch", LV), 2);
}

#[tokio::test]
async fn finalizer_added_at_the_same_time_is_not_lost() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(bare("pvc-1").build());
    cluster.api.before_next("patch", LV, |api| {
        api.edit(LV, "", "pvc-1", |object| {
            let metadata = object.pointer_mut("/metadata").unwrap().as_object_mut().unwrap();
            metadata.insert("finalizers".to_owned(), json!(["other/one"]));
        });
    });
    cluster.reconcile("pvc-1").await.unwrap_err();
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.object("pvc-1").pointer("/metadata/finalizers"), Some(&json!(["other/one", FINALIZER])));
}

#[rstest]
#[case(Failure::Status(500))]
#[case(Failure::Unreachable)]
#[case(Failure::LostAnswer)]
#[tokio::test]
async fn when_the_status_cannot_be_written_the_same_lv_is_adopted(#[case] failure: Failure) {
    let mut cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").build());
    cluster.api.inject("patch", LV, 1, failure);
    cluster.reconcile("pvc-1").await.unwrap_err();
    cluster.restart_agent();
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.status("pvc-1"), json!({"volumeID": "u1", "currentSize": "1Gi"}));
    assert_eq!(cluster.lvm.volumes(VG), ["u1"]);
    assert_eq!(cluster.lvm.count("lvcreate"), 1);
}

#[tokio::test]
async fn an_own_write_that_the_watch_has_not_shown_is_not_repeated() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").build());
    let old = cluster.object("pvc-1");
    cluster.reconcile_seen(old.clone()).await.unwrap();
    cluster.lvm.remove_volume(VG, "u1");
    cluster.reconcile_seen(old).await.unwrap();
    assert_eq!(cluster.lvm.count("lvcreate"), 1);
    assert_eq!(cluster.api.count("patch", LV), 1);
}

#[tokio::test]
async fn while_lvmd_is_away_nothing_fails_and_nothing_is_written() {
    let mut cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").build());
    cluster.lose_lvmd();
    let error = cluster.reconcile("pvc-1").await.unwrap_err();
    assert!(matches!(error, ReconcileError::LvmdAway(_)), "{error}");
    assert_eq!(cluster.api.count("patch", LV), 0);
    cluster.restart_agent();
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.status("pvc-1"), json!({"volumeID": "u1", "currentSize": "1Gi"}));
}

#[tokio::test]
async fn an_lvm_that_hangs_fails_no_volume() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").build());
    cluster.lvm.fail("lvcreate", 1, Fault::Timeout);
    let error = cluster.reconcile("pvc-1").await.unwrap_err();
    assert!(matches!(error, ReconcileError::LvmdAway(_)), "{error}");
    cluster.reconcile("pvc-1").await.unwrap();
}

#[tokio::test]
async fn full_volume_group_is_reported_once_in_the_status() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").sized("11Gi").build());
    cluster.reconcile("pvc-1").await.unwrap();
    let status = cluster.status("pvc-1");
    assert_eq!(status.get("code"), Some(&json!(8)));
    assert!(status.get("message").unwrap().as_str().unwrap().contains("no enough space"), "{status}");
    assert_eq!(status.get("volumeID"), None);
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.api.count("patch", LV), 1);
}

#[tokio::test]
async fn a_failure_that_could_not_be_written_is_written_next_time() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").sized("11Gi").build());
    cluster.api.fail_next("patch", LV, 1, 503);
    cluster.reconcile("pvc-1").await.unwrap_err();
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.status("pvc-1").get("code"), Some(&json!(8)));
}

#[tokio::test]
async fn a_size_that_is_none_is_refused_with_a_reason() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").sized("-1Gi").build());
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.status("pvc-1").get("code"), Some(&json!(3)));
    assert_eq!(cluster.lvm.count("lvcreate"), 0);
}

#[tokio::test]
async fn size_increase_grows_the_volume_and_a_decrease_is_ignored() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").build());
    cluster.reconcile("pvc-1").await.unwrap();
    cluster.resize("pvc-1", "2Gi");
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.status("pvc-1"), json!({"volumeID": "u1", "currentSize": "2Gi"}));
    cluster.resize("pvc-1", "1Gi");
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.status("pvc-1"), json!({"volumeID": "u1", "currentSize": "2Gi"}));
    assert_eq!(cluster.lvm.volume(VG, "u1").unwrap().extents, 512);
}

#[tokio::test]
async fn expansion_failure_is_reported_retried_and_cleared() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").build());
    cluster.reconcile("pvc-1").await.unwrap();
    cluster.resize("pvc-1", "11Gi");
    cluster.reconcile("pvc-1").await.unwrap_err();
    let status = cluster.status("pvc-1");
    assert_eq!((status.get("code"), status.get("currentSize")), (Some(&json!(8)), Some(&json!("1Gi"))));
    cluster.lvm.extend_group(VG, 5 * GIB);
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.status("pvc-1"), json!({"volumeID": "u1", "currentSize": "11Gi"}));
}

#[tokio::test]
async fn repeated_expansion_request_gets_its_own_failure_status() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").build());
    cluster.reconcile("pvc-1").await.unwrap();
    cluster.resize("pvc-1", "11Gi");
    cluster.reconcile("pvc-1").await.unwrap_err();
    cluster.api.clear_requests();
    cluster.reconcile("pvc-1").await.unwrap_err();
    assert_eq!(cluster.api.count("patch", LV), 1, "a try of our own writes the same failure");

    let mut changes = cluster.api.subscribe(LV);
    cluster.api.edit(LV, "", "pvc-1", |object| {
        let annotations = json!({"topolvm.io/resize-requested-at": "later"});
        object.pointer_mut("/metadata").unwrap().as_object_mut().unwrap().insert("annotations".to_owned(), annotations);
    });
    cluster.reconcile("pvc-1").await.unwrap_err();
    let mut codes = Vec::new();
    for _ in 0..3 {
        codes.push(changes.next().await.object().pointer("/status/code").cloned());
    }
    assert_eq!(codes, [Some(json!(8)), None, Some(json!(8))]);
}

#[tokio::test]
async fn an_unknown_current_size_is_learned() {
    let cluster = Cluster::start().await;
    cluster.lvm.add_volume(VG, "u1", FakeVolume::thick(2 * GIB));
    cluster.api.apply_json(fresh("pvc-1").ready("u1", "1Gi").build());
    cluster.api.edit(LV, "", "pvc-1", |object| {
        object.pointer_mut("/status").unwrap().as_object_mut().unwrap().remove("currentSize");
    });
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.status("pvc-1"), json!({"volumeID": "u1", "currentSize": "2Gi"}));
}

#[tokio::test]
async fn a_deleted_object_goes_with_its_lv() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").build());
    cluster.reconcile("pvc-1").await.unwrap();
    cluster.api.delete(LV, "", "pvc-1");
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.lvm.volumes(VG), [""; 0]);
    assert_eq!(cluster.api.get_json(LV, "", "pvc-1"), None);
}

#[tokio::test]
async fn only_a_logical_volume_that_was_there_is_said_to_be_removed() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone());
    let _guard = tracing::subscriber::set_default(subscriber.finish());
    for is_there in [true, false] {
        let cluster = Cluster::start().await;
        cluster.api.apply_json(fresh("pvc-1").build());
        cluster.reconcile("pvc-1").await.unwrap();
        if !is_there {
            cluster.lvm.remove_volume(VG, "u1");
        }
        cluster.api.delete(LV, "", "pvc-1");
        log.take();
        cluster.reconcile("pvc-1").await.unwrap();
        assert_eq!(cluster.api.get_json(LV, "", "pvc-1"), None);
        assert_eq!(log.take().contains("removed the logical volume"), is_there);
    }
}

#[tokio::test]
async fn finalizers_of_others_stay_when_ours_goes() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").finalizer("other/one").build());
    cluster.reconcile("pvc-1").await.unwrap();
    cluster.api.delete(LV, "", "pvc-1");
    let old = cluster.object("pvc-1");
    cluster.api.edit(LV, "", "pvc-1", |object| {
        *object.pointer_mut("/metadata/finalizers").unwrap() = json!(["other/one", FINALIZER]);
    });
    cluster.reconcile_seen(old).await.unwrap_err();
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.object("pvc-1").pointer("/metadata/finalizers"), Some(&json!(["other/one"])));
}

#[rstest]
#[case(Failure::Status(500))]
#[case(Failure::LostAnswer)]
#[tokio::test]
async fn a_deletion_that_was_broken_off_is_completed(#[case] failure: Failure) {
    let mut cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").build());
    cluster.reconcile("pvc-1").await.unwrap();
    cluster.api.delete(LV, "", "pvc-1");
    let seen = cluster.object("pvc-1");
    cluster.api.inject("patch", LV, 1, failure);
    cluster.reconcile_seen(seen.clone()).await.unwrap_err();
    cluster.restart_agent();
    cluster.reconcile_seen(seen).await.unwrap();
    assert_eq!(cluster.api.get_json(LV, "", "pvc-1"), None);
    assert_eq!(cluster.lvm.volumes(VG), [""; 0]);
}

#[tokio::test]
async fn stale_watch_of_a_deleted_object_keeps_its_successor() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").build());
    cluster.reconcile("pvc-1").await.unwrap();
    cluster.api.delete(LV, "", "pvc-1");
    let stale = cluster.object("pvc-1");
    cluster.reconcile("pvc-1").await.unwrap();
    let successor = fresh("pvc-1").uid("u2").build();
    cluster.api.apply_json(successor);
    cluster.reconcile_seen(stale).await.unwrap_err();
    assert_eq!(cluster.object("pvc-1").pointer("/metadata/finalizers"), Some(&json!([FINALIZER])));
}

#[tokio::test]
async fn a_missing_volume_group_keeps_the_object_until_it_is_back() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").build());
    cluster.reconcile("pvc-1").await.unwrap();
    cluster.api.delete(LV, "", "pvc-1");
    cluster.lvm.remove_group(VG);
    let error = cluster.reconcile("pvc-1").await.unwrap_err();
    assert!(matches!(error, ReconcileError::Remove(_)), "{error}");
    assert!(cluster.api.get_json(LV, "", "pvc-1").is_some());
    cluster.lvm.add_group(VG, 10 * GIB, 1);
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.api.get_json(LV, "", "pvc-1"), None);
}

#[tokio::test]
async fn a_volume_of_a_removed_device_class_goes_with_its_object() {
    let cluster = Cluster::with(TWO_CLASSES).await;
    cluster.api.apply_json(fresh("pvc-1").class("hdd").build());
    cluster.reconcile("pvc-1").await.unwrap();
    cluster.api.delete(LV, "", "pvc-1");
    let poorer = LvmdProcess::start(&cluster.lvm, ONE_CLASS).await;
    let poor = reconciler(&cluster.api, poorer.client());
    let seen: LogicalVolume = serde_json::from_value(cluster.object("pvc-1")).unwrap();
    poor.reconcile(Arc::new(seen)).await.unwrap();
    assert_eq!(cluster.lvm.volumes("slow"), [""; 0]);
    assert_eq!(cluster.api.get_json(LV, "", "pvc-1"), None);
}

#[tokio::test]
async fn refused_object_is_deleted_without_its_device_class() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").class("nosuch").build());
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.status("pvc-1").get("code"), Some(&json!(9)));
    cluster.api.delete(LV, "", "pvc-1");
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.api.get_json(LV, "", "pvc-1"), None);
}

#[tokio::test]
async fn a_half_made_volume_is_removed_with_its_object() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").build());
    cluster.lvm.fail_after_success("lvcreate", 1, Fault::says("device-mapper: something is wrong"));
    // It cannot be cleaned up at once either.
    cluster.lvm.fail("lvremove", 1, Fault::says("device-mapper: something is wrong"));
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.status("pvc-1").get("code"), Some(&json!(13)));
    cluster.api.delete(LV, "", "pvc-1");
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.lvm.volumes(VG), [""; 0]);
    assert_eq!(cluster.api.get_json(LV, "", "pvc-1"), None);
}

#[tokio::test]
async fn a_volume_in_use_keeps_its_object() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").build());
    cluster.reconcile("pvc-1").await.unwrap();
    cluster.lvm.edit_volume(VG, "u1", |volume| volume.open = true);
    cluster.api.delete(LV, "", "pvc-1");
    let error = cluster.reconcile("pvc-1").await.unwrap_err();
    assert!(matches!(error, ReconcileError::Remove(_)), "{error}");
    // As in the deletion of a namespace, whose pods end a moment later: the clock stands still
    assert!(cluster.api.list_json("events.events.k8s.io").is_empty());
    cluster.lvm.edit_volume(VG, "u1", |volume| volume.open = false);
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.api.get_json(LV, "", "pvc-1"), None);
}

#[tokio::test]
async fn an_object_pending_deletion_is_left_alone() {
    let cluster = Cluster::start().await;
    let pending = |name| fresh(name).annotation("topolvm.io/pendingdeletion", "true");
    cluster.api.apply_json(pending("pvc-1").build());
    cluster.reconcile("pvc-1").await.unwrap();
    cluster.api.delete(LV, "", "pvc-1");
    cluster.reconcile("pvc-1").await.unwrap();
    assert!(cluster.api.get_json(LV, "", "pvc-1").is_some());
    assert_eq!(cluster.api.count("patch", LV), 0);
}

#[tokio::test]
async fn objects_of_other_nodes_are_left_alone() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(bare("pvc-1").on("n2").build());
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.api.count("patch", LV), 0);
    assert_eq!(cluster.lvm.count("lvcreate"), 0);
}
