//! Objects that are being deleted, or are gone, while something refers to their volumes. The agent is played by an
//! answer to each new object.

use std::convert::Infallible;

use rstest::rstest;
use serde_json::{Value, json};
use topolvm_api::ApiFlavor;
use topolvm_testkit::ApiServer;
use topolvm_testkit::api_server::Kind;
use topolvm_testkit::fixtures::{logical_volume, node};

use super::*;

const UID: &str = "0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a";
const VOLUMES: &str = "logicalvolumes.topolvm.io";
const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";
const FINALIZER: &str = "topolvm.io/logicalvolume";

fn server() -> (ApiServer, Cluster) {
    let server = ApiServer::new();
    for definition in [
        topolvm_api::crd(ApiFlavor::TopoLvm),
        topolvm_api::node_storage_crd(ApiFlavor::TopoLvm),
        topolvm_api::disk_operation_crd(ApiFlavor::TopoLvm),
    ] {
        server.apply_json(definition);
    }
    let cluster = Cluster { client: server.client(), flavor: ApiFlavor::TopoLvm };
    (server, cluster)
}

/// A LogicalVolume that is being deleted and that its agent holds.
fn deleted_volume(server: &ApiServer) {
    delete_volume(server, &[FINALIZER]);
}

fn delete_volume(server: &ApiServer, finalizers: &[&str]) {
    let object = logical_volume("pvc-1").uid("u0").on("n1").ready(UID, "1Gi");
    let mut object = json!(object.annotation("topolvm.io/filesystem", "xfs").build());
    object["metadata"]["finalizers"] = json!(finalizers);
    server.apply_json(object);
    server.delete(VOLUMES, "", "pvc-1");
}

fn persistent_volume(server: &ApiServer) {
    server.apply_json(json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pvc-1"},
        "spec": {"csi": {"driver": "topolvm.io", "volumeHandle": UID}},
    }));
}

/// A Node whose agent reports an LV without a LogicalVolume.
fn node_with_orphan(server: &ApiServer, lv: &str, object: &str) {
    let orphan = json!({"lv": lv, "logicalVolume": object, "deviceClass": "ssd", "bytes": 1 << 30, "note": "kept"});
    let mut n1 = json!(node("n1").build());
    n1["metadata"]["annotations"] = json!({"topolvm.io/orphans": json!({"volumes": [orphan]}).to_string()});
    server.apply_json(n1);
}

/// Plays the agent: each new object that asks for an LV gets it.
async fn give_lvs(server: &ApiServer) -> Infallible {
    let mut changes = server.subscribe(VOLUMES);
    loop {
        let change = changes.next().await;
        let object = change.object();
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let asks = object["metadata"]["annotations"]["topolvm.io/adopt"].is_string();
        if asks && object["status"]["volumeID"].is_null() && server.get_json(VOLUMES, "", &name).is_some() {
            server.edit(VOLUMES, "", &name, |object| object["status"] = json!({"volumeID": UID, "currentSize": "1Gi"}));
        }
    }
}

async fn undelete(server: &ApiServer, cluster: &Cluster, names: &[&str]) -> Result<(), Error> {
    let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
    let flags = UndeleteFlags { all: names.is_empty(), names, dry_run: false };
    tokio::select! {
        done = run(cluster, &flags) => done,
        never = give_lvs(server) => match never {},
    }
}

fn volume(server: &ApiServer, name: &str) -> Value {
    server.get_json(VOLUMES, "", name).unwrap()
}

#[rstest]
#[case::by_name(&["pvc-1"])]
#[case::all(&[])]
#[tokio::test]
async fn deleted_object_is_made_new_with_its_lv(#[case] names: &[&str]) {
    let (server, cluster) = server();
    deleted_volume(&server);
    persistent_volume(&server);
    undelete(&server, &cluster, names).await.unwrap();
    let made = volume(&server, "pvc-1");
    assert_ne!(made["metadata"]["uid"], "u0");
    assert!(made["metadata"]["deletionTimestamp"].is_null());
    let annotations = json!({"topolvm.io/filesystem": "xfs", "topolvm.io/adopt": UID});
    assert_eq!((&made["metadata"]["annotations"], &made["spec"]["nodeName"]), (&annotations, &json!("n1")));
    undelete(&server, &cluster, &[]).await.unwrap();
    assert_eq!(volume(&server, "pvc-1"), made);
}

#[tokio::test]
async fn object_that_nothing_refers_to_goes_on_being_deleted() {
    let (server, cluster) = server();
    deleted_volume(&server);
    let before = volume(&server, "pvc-1");
    undelete(&server, &cluster, &[]).await.unwrap();
    let error = undelete(&server, &cluster, &["pvc-1"]).await.unwrap_err();
    assert!(matches!(error, Error::Undelete(UndeleteError::NothingToRestore(_))), "{error}");
    assert_eq!(volume(&server, "pvc-1"), before);
}

#[tokio::test]
async fn object_that_csi_deletes_goes_on_being_deleted() {
    let (server, cluster) = server();
    deleted_volume(&server);
    persistent_volume(&server);
    server.edit("persistentvolumes", "", "pvc-1", |object| {
        object["spec"]["persistentVolumeReclaimPolicy"] = json!("Delete");
        object["status"]["phase"] = json!("Released");
    });
    let before = volume(&server, "pvc-1");
    undelete(&server, &cluster, &[]).await.unwrap();
    assert_eq!(volume(&server, "pvc-1"), before);
}

#[tokio::test]
async fn object_with_another_finalizer_is_left_alone() {
    let (server, cluster) = server();
    delete_volume(&server, &[FINALIZER, "example.com/it"]);
    persistent_volume(&server);
    let before = volume(&server, "pvc-1");
    let error = undelete(&server, &cluster, &[]).await.unwrap_err();
    assert!(matches!(error, Error::Undelete(UndeleteError::OtherFinalizer { .. })), "{error}");
    assert_eq!(volume(&server, "pvc-1"), before);
}

#[rstest]
#[case::listed(UID)]
#[case::in_quarantine("topolvm.quarantine.0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a")]
#[tokio::test]
async fn object_that_is_gone_is_made_from_its_lv(#[case] lv: &str) {
    let (server, cluster) = server();
    node_with_orphan(&server, lv, "");
    persistent_volume(&server);
    undelete(&server, &cluster, &[]).await.unwrap();
    let made = volume(&server, "pvc-1");
    let spec = json!({"name": "pvc-1", "nodeName": "n1", "size": "1073741824", "deviceClass": "ssd"});
    assert_eq!((&made["spec"], &made["metadata"]["annotations"]["topolvm.io/adopt"]), (&spec, &json!(lv)));
}

#[tokio::test]
async fn object_that_a_backup_tool_has_restored_asks_for_the_lv() {
    let (server, cluster) = server();
    node_with_orphan(&server, UID, "pvc-1");
    persistent_volume(&server);
    server.apply_json(logical_volume("pvc-1").uid("u1").on("n1").finalizer(FINALIZER).failed(6, "waits").build());
    undelete(&server, &cluster, &["pvc-1"]).await.unwrap();
    let object = volume(&server, "pvc-1");
    assert_eq!((&object["metadata"]["uid"], &object["status"]["volumeID"]), (&json!("u1"), &json!(UID)));
}

#[tokio::test]
async fn snapshot_that_is_gone_is_one_again() {
    let (server, cluster) = server();
    server.serve(Kind::cluster_scoped(
        "snapshot.storage.k8s.io",
        "v1",
        "VolumeSnapshotContent",
        "volumesnapshotcontents",
    ));
    server.apply_json(json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent", "metadata": {"name": "nightly"},
        "spec": {"driver": "topolvm.io", "source": {"volumeHandle": "origin"}}, "status": {"snapshotHandle": UID},
    }));
    server.apply_json(logical_volume("pvc-2").on("n1").ready("origin", "1Gi").build());
    node_with_orphan(&server, UID, "snapshot-7");
    undelete(&server, &cluster, &["snapshot-7"]).await.unwrap();
    let spec = &volume(&server, "snapshot-7")["spec"];
    assert_eq!((&spec["source"], &spec["accessType"]), (&json!("pvc-2"), &json!("ro")));
}

#[tokio::test]
async fn lv_that_an_object_has_is_no_reason() {
    let (server, cluster) = server();
    node_with_orphan(&server, UID, "pvc-1");
    persistent_volume(&server);
    server.apply_json(logical_volume("other").on("n1").ready(UID, "1Gi").build());
    undelete(&server, &cluster, &[]).await.unwrap();
    assert!(server.get_json(VOLUMES, "", "pvc-1").is_none());
}

#[tokio::test]
async fn deleted_definition_takes_all_or_nothing() {
    let (server, cluster) = server();
    deleted_volume(&server);
    persistent_volume(&server);
    let finalizers = json!(["customresourcecleanup.apiextensions.k8s.io"]);
    server.edit(DEFINITIONS, "", VOLUMES, |object| object["metadata"]["finalizers"] = finalizers);
    server.delete(DEFINITIONS, "", VOLUMES);
    let before = volume(&server, "pvc-1");
    let error = undelete(&server, &cluster, &["pvc-1"]).await.unwrap_err();
    assert!(matches!(error, Error::Undelete(UndeleteError::DefinitionDeleted)), "{error}");
    assert_eq!(volume(&server, "pvc-1"), before);
}
