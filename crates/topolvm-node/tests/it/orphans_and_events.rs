//! Objects that went away behind the reconciler's back, answers that were lost, and events.

use lvmd_client::LvmdClient;
use serde_json::json;
use topolvm_node::reconcile::ReconcileError;
use topolvm_testkit::lvm::Fault;

use crate::cluster::{Cluster, LV, fresh, reconciler};
use crate::lvmd_process::{LvmdProcess, ONE_CLASS, TWO_CLASSES, VG};

const EVENTS: &str = "events.events.k8s.io";

#[tokio::test]
async fn object_whose_lv_may_exist_stays_after_a_refused_retry() {
    let mut cluster = Cluster::with(TWO_CLASSES).await;
    cluster.api.apply_json(fresh("pvc-1").class("hdd").build());
    cluster.lvm.fail_after_success("lvcreate", 1, Fault::Timeout);
    // lvmd is started again with other classes behind the same socket
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("lvmd.sock");
    let richer = LvmdProcess::start(&cluster.lvm, TWO_CLASSES).await.listen(&socket).await;
    cluster.reconciler = reconciler(&cluster.api, LvmdClient::connect(&socket).unwrap());
    cluster.reconcile("pvc-1").await.unwrap_err();
    richer.stop().await;
    let _poorer = LvmdProcess::start(&cluster.lvm, ONE_CLASS).await.listen(&socket).await;
    while cluster.status("pvc-1").is_null() {
        let _away = cluster.reconcile("pvc-1").await;
    }
    assert_eq!(cluster.status("pvc-1").get("code"), Some(&json!(9)));
    cluster.api.delete(LV, "", "pvc-1");
    let error = cluster.reconcile("pvc-1").await.unwrap_err();
    assert!(matches!(error, ReconcileError::Remove(_)), "{error}");
}

#[tokio::test]
async fn lv_created_for_a_deleted_object_is_removed() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").build());
    let stale = cluster.object("pvc-1");
    cluster.api.edit(LV, "", "pvc-1", |object| {
        *object.pointer_mut("/metadata/finalizers").unwrap() = json!([]);
    });
    cluster.api.delete(LV, "", "pvc-1");
    cluster.reconcile_seen(stale.clone()).await.unwrap();
    assert_eq!((cluster.lvm.count("lvcreate"), cluster.lvm.volumes(VG)), (1, Vec::new()));

    // And when a new object has taken the name
    cluster.api.apply_json(fresh("pvc-1").uid("u2").build());
    cluster.reconcile_seen(stale).await.unwrap();
    assert_eq!((cluster.lvm.count("lvcreate"), cluster.lvm.volumes(VG)), (2, Vec::new()));
    assert_eq!(cluster.status("pvc-1"), json!(null));
}

#[tokio::test]
async fn failure_is_reported_once_in_an_event() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").build());
    cluster.reconcile("pvc-1").await.unwrap();
    cluster.resize("pvc-1", "11Gi");
    for _ in 0..3 {
        cluster.reconcile("pvc-1").await.unwrap_err();
    }
    assert_eq!(cluster.api.count("create", EVENTS), 1);
    assert_eq!(cluster.api.count("patch", EVENTS), 0);
}

#[tokio::test]
async fn failure_event_names_the_object_and_each_new_message() {
    let cluster = Cluster::start().await;
    cluster.api.apply_json(fresh("pvc-1").build());
    cluster.reconcile("pvc-1").await.unwrap();
    let mut messages = Vec::new();
    for size in ["11Gi", "12Gi"] {
        cluster.resize("pvc-1", size);
        cluster.reconcile("pvc-1").await.unwrap_err();
        messages.push(cluster.status("pvc-1")["message"].clone());
    }
    let mut events = cluster.api.list_json(EVENTS);
    events.sort_by_key(|event| event["eventTime"].to_string());
    let notes: Vec<_> = events.iter().map(|event| event["note"].clone()).collect();
    assert_eq!(notes, messages);
    assert_ne!(messages[0], messages[1]);
    for event in events {
        let what =
            ["type", "reason", "action", "reportingController", "reportingInstance"].map(|key| event[key].clone());
        assert_eq!(json!(what), json!(["Warning", "ExpandFailed", "Expand", "topolvm-node", "n1"]));
        let regarding = json!({"apiVersion": "topolvm.io/v1", "kind": "LogicalVolume", "name": "pvc-1", "uid": "u1"});
        assert_eq!(event["regarding"], regarding);
    }
}

#[tokio::test]
async fn without_the_right_to_write_events_everything_else_works() {
    let cluster = Cluster::start().await;
    cluster.api.fail_next("create", EVENTS, 1, 403);
    cluster.api.apply_json(fresh("pvc-1").sized("11Gi").build());
    cluster.reconcile("pvc-1").await.unwrap();
    assert_eq!(cluster.status("pvc-1").get("code"), Some(&json!(8)));
}
