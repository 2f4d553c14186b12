//! LVs without their LogicalVolumes: listed, restored with objects and claim, deleted. The agent is played by an answer
//! to the creation of its object.

use rstest::rstest;
use serde_json::{Value, json};
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::node;

use super::adoption::{Adoption, Purpose, deletion_name};
use super::args::RestoreFlags;
use super::*;

const LV: &str = "topolvm.quarantine.0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a";
/// Name of the same LV before its quarantine, as an older list has it.
const FORMER: &str = "0b5a2f4e-8d54-4f5c-9a0e-7d8f6f3c2b1a";
const VOLUMES: &str = "logicalvolumes.topolvm.io";

fn server() -> (ApiServer, Cluster) {
    let server = ApiServer::new();
    let mut object = json!(node("n1").build());
    let orphan = json!({
        "lv": LV, "logicalVolume": "pvc-1", "deviceClass": "ssd", "bytes": 1 << 30, "quarantinedAt": 1_767_225_600,
        "note": "in quarantine until an administrator restores or deletes it",
    });
    let orphans = json!({"volumes": [orphan], "more": 2}).to_string();
    object["metadata"]["annotations"] = json!({"topolvm.io/orphans": orphans});
    server.apply_json(object);
    server.apply_json(json!(node("n2").build()));
    let cluster = Cluster { client: server.client(), flavor: ApiFlavor::TopoLvm };
    (server, cluster)
}

/// Answers for the agent as soon as there is a LogicalVolume.
async fn answer(server: &ApiServer, status: Value) -> Value {
    let name = |object: Option<&Value>| Some(object?["metadata"]["name"].as_str()?.to_owned());
    let mut changes = server.subscribe(VOLUMES);
    let name = loop {
        if let Some(name) = name(server.list_json(VOLUMES).first()) {
            break name;
        }
        changes.next().await;
    };
    server.edit(VOLUMES, "", &name, |object| object["status"] = status);
    server.get_json(VOLUMES, "", &name).unwrap()
}

fn ready() -> Value {
    json!({"volumeID": "u9", "currentSize": "1Gi"})
}

fn flags(words: &[&str]) -> RestoreFlags {
    #[derive(clap::Parser)]
    struct Flags {
        #[command(flatten)]
        restore: RestoreFlags,
    }
    <Flags as clap::Parser>::try_parse_from([&["restore", "n1", LV], words].concat()).unwrap().restore
}

#[tokio::test]
async fn orphans_reported_by_the_agents_are_listed() {
    let (_server, cluster) = server();
    let nodes = request::list_all::<Node>(&cluster.client).await.unwrap();
    let (rows, more) = rows(cluster.flavor, &nodes).unwrap();
    assert_eq!((rows.len(), more), (1, 2));
    let listed = in_table(&rows, true);
    assert!(listed.contains(LV) && listed.contains("2026-01-01T00:00:00Z") && listed.contains("1Gi"), "{listed}");
}

#[tokio::test]
async fn orphan_restoration_creates_volume_pv_and_claim_only_once() {
    let (server, cluster) = server();
    let flags = flags(&["--claim=data", "--storage-class=fast", "--filesystem=xfs"]);
    let (restored, object) = tokio::join!(restoration::run(&cluster, &flags, "shop"), answer(&server, ready()));
    restored.unwrap();
    let spec = json!({"name": "pvc-1", "nodeName": "n1", "size": "1073741824", "deviceClass": "ssd"});
    assert_eq!(object["spec"], spec);
    let annotations = json!({
        "topolvm.io/adopt": LV, "topolvm.io/filesystem": "xfs", "topolvm.io/claim": "shop/data",
    });
    assert_eq!(object["metadata"]["annotations"], annotations);
    let persistent = server.get_json("persistentvolumes", "", "pvc-1").unwrap();
    let spec = &persistent["spec"];
    assert_eq!(spec["csi"], json!({"driver": "topolvm.io", "volumeHandle": "u9", "fsType": "xfs"}));
    let term = &spec["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0];
    assert_eq!(*term, json!({"key": "topology.topolvm.io/node", "operator": "In", "values": ["n1"]}));
    assert_eq!((&spec["persistentVolumeReclaimPolicy"], &spec["claimRef"]["name"]), (&json!("Retain"), &json!("data")));
    let claim = server.get_json("persistentvolumeclaims", "shop", "data").unwrap();
    assert_eq!((&claim["spec"]["volumeName"], &claim["spec"]["storageClassName"]), (&json!("pvc-1"), &json!("fast")));
    // The agent has taken it off the Node by then
    server.edit("nodes", "", "n1", |node| node["metadata"]["annotations"] = json!({}));
    restoration::run(&cluster, &flags, "shop").await.unwrap();
    assert_eq!(server.list_json(VOLUMES).len(), 1);
}

/// Has a LogicalVolume that got the LV, bound to the claim shop/data.
fn restored(server: &ApiServer, status: &Value) {
    server.apply_json(json!({
        "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume",
        "metadata": {"name": "pvc-1", "annotations": {"topolvm.io/adopted": LV}},
        "spec": {"name": "pvc-1", "nodeName": "n1", "size": "2Gi", "deviceClass": "ssd"}, "status": status,
    }));
    server.apply_json(json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pvc-1"},
        "spec": {
            "csi": {"driver": "topolvm.io", "volumeHandle": "u9"}, "claimRef": {"namespace": "shop", "name": "data"},
        },
    }));
    server.apply_json(json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"namespace": "shop", "name": "data"},
        "spec": {"volumeName": "pvc-1"},
    }));
    // The agent has taken it off the Node by then
    server.edit("nodes", "", "n1", |node| node["metadata"]["annotations"] = json!({}));
}

fn refused_growth() -> Value {
    json!({"volumeID": "u9", "currentSize": "1Gi", "code": 8, "message": "too little free space"})
}

#[tokio::test]
async fn restored_volume_survives_a_second_restore() {
    for annotation in ["topolvm.io/adopted", "topolvm.io/adopt"] {
        let (server, cluster) = server();
        restored(&server, &refused_growth());
        server.edit(VOLUMES, "", "pvc-1", |object| object["metadata"]["annotations"] = json!({annotation: LV}));
        let before = server.get_json(VOLUMES, "", "pvc-1").unwrap();
        restoration::run(&cluster, &flags(&["--claim=data"]), "shop").await.unwrap();
        assert_eq!(server.get_json(VOLUMES, "", "pvc-1").unwrap(), before);
    }
}

#[tokio::test]
async fn restored_volume_is_not_given_to_another_claim() {
    let (server, cluster) = server();
    restored(&server, &ready());
    let error = restoration::run(&cluster, &flags(&["--claim=mine"]), "other").await.unwrap_err().chain();
    assert!(error.contains("PersistentVolume pvc-1 is reserved for the claim shop/data"), "{error}");
    assert!(server.get_json("persistentvolumeclaims", "other", "mine").is_none());
}

#[tokio::test]
async fn lv_of_an_object_is_not_deleted_and_its_claim_is_named() {
    for (lv, status) in [(LV, ready()), (FORMER, ready()), (LV, refused_growth()), ("u9", ready())] {
        let (server, cluster) = server();
        restored(&server, &status);
        let error = deletion::run(&cluster, "n1", lv).await.unwrap_err().chain();
        let owner = "LogicalVolume pvc-1, PersistentVolume pvc-1, claim shop/data uses it";
        assert!(error.contains("is not an orphan, and nothing was changed") && error.contains(owner), "{error}");
        let found: Vec<_> = server.list_json(VOLUMES);
        assert_eq!(found.len(), 1);
        assert!(found[0]["metadata"]["deletionTimestamp"].is_null(), "{found:?}");
    }
}

#[tokio::test]
async fn lv_of_an_object_is_not_restored_from_a_stale_list() {
    let (server, cluster) = server();
    // The API server remembers the object again, and the annotation of the Node is older
    server.apply_json(json!({
        "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume", "metadata": {"name": "pvc-1", "uid": FORMER},
        "spec": {"name": "pvc-1", "nodeName": "n1", "size": "1Gi", "deviceClass": "ssd"},
    }));
    let error = restoration::run(&cluster, &flags(&["--claim=data"]), "shop").await.unwrap_err().chain();
    assert!(error.contains("is not an orphan") && error.contains("LogicalVolume pvc-1 uses it"), "{error}");
    assert_eq!(server.list_json(VOLUMES).len(), 1);
}

#[tokio::test]
async fn deletion_leaves_an_unfinished_restore_alone_and_vice_versa() {
    let unfinished = async |name: &str| {
        let (server, cluster) = server();
        server.apply_json(json!({
            "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume",
            "metadata": {"name": name, "annotations": {"topolvm.io/adopt": LV}},
            "spec": {"name": name, "nodeName": "n1", "size": "1Gi", "deviceClass": "ssd"},
        }));
        let error = if name == "pvc-1" {
            deletion::run(&cluster, "n1", LV).await
        } else {
            restoration::run(&cluster, &flags(&["--claim=data"]), "shop").await
        };
        let error = error.unwrap_err().chain();
        assert!(error.contains(&format!("LogicalVolume {name} is taking over the LV")), "{error}");
        assert_eq!(server.list_json(VOLUMES).len(), 1);
    };
    unfinished("pvc-1").await;
    unfinished(&deletion_name(LV)).await;
}

#[tokio::test]
async fn deletion_goes_on_after_the_lv_was_adopted() {
    let (server, cluster) = server();
    let name = deletion_name(LV);
    server.apply_json(json!({
        "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume",
        "metadata": {"name": name, "annotations": {"topolvm.io/adopted": LV}},
        "spec": {"name": name, "nodeName": "n1", "size": "1Gi", "deviceClass": "ssd"}, "status": ready(),
    }));
    deletion::run(&cluster, "n1", LV).await.unwrap();
    assert!(server.list_json(VOLUMES).is_empty());
}

#[tokio::test]
async fn raw_block_volume_has_no_filesystem() {
    let (server, cluster) = server();
    let flags = flags(&["--block", "--name=back", "--claim=data"]);
    let (restored, object) = tokio::join!(restoration::run(&cluster, &flags, "shop"), answer(&server, ready()));
    restored.unwrap();
    assert_eq!(object["metadata"]["annotations"], json!({"topolvm.io/adopt": LV, "topolvm.io/claim": "shop/data"}));
    let persistent = server.get_json("persistentvolumes", "", "back").unwrap();
    assert_eq!(
        (&persistent["spec"]["volumeMode"], &persistent["spec"]["csi"]["fsType"]),
        (&json!("Block"), &json!(null))
    );
}

#[tokio::test]
async fn restore_without_a_claim_makes_no_persistent_volume() {
    let (server, cluster) = server();
    let alone = flags(&[]);
    let (restored, _) = tokio::join!(restoration::run(&cluster, &alone, "shop"), answer(&server, ready()));
    restored.unwrap();
    assert!(server.list_json("persistentvolumes").is_empty());
    restoration::run(&cluster, &flags(&["--claim=data"]), "shop").await.unwrap();
    let persistent = server.get_json("persistentvolumes", "", "pvc-1").unwrap();
    let reserved = &persistent["spec"]["claimRef"];
    assert_eq!((&reserved["namespace"], &reserved["name"]), (&json!("shop"), &json!("data")));
    assert_eq!(server.list_json(VOLUMES).len(), 1);
}

#[tokio::test]
async fn what_has_the_name_is_named_and_nothing_is_made() {
    let (server, cluster) = server();
    server.apply_json(json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pvc-1"}}));
    let error = restoration::run(&cluster, &flags(&[]), "shop").await.unwrap_err().chain();
    assert!(error.contains("PersistentVolume pvc-1 already"), "{error}");
    let adopt = async |node, lv| {
        let adoption = Adoption { purpose: Purpose::Restore, node, lv, name: None, annotations: Vec::new() };
        adoption.run(&cluster, None).await.unwrap_err().to_string()
    };
    let error = adopt("n1", "other").await;
    assert!(error.contains("reports no LV other"), "{error}");
    assert!(adopt("n9", LV).await.contains("Node n9 does not exist"));
    assert!(server.list_json(VOLUMES).is_empty());
}

#[tokio::test]
async fn an_object_that_cannot_have_the_lv_is_deleted_again() {
    let (server, cluster) = server();
    let flags = flags(&[]);
    let refusal = json!({"code": 9, "message": "logical volume vg/x is in use"});
    let (restored, _) = tokio::join!(restoration::run(&cluster, &flags, "shop"), answer(&server, refusal));
    let error = restored.unwrap_err().chain();
    assert!(error.contains("is unchanged: logical volume vg/x is in use"), "{error}");
    assert!(server.list_json(VOLUMES).is_empty() && server.list_json("persistentvolumes").is_empty());
}

#[tokio::test]
async fn an_lv_is_deleted_by_an_object_that_has_got_it_first() {
    let (server, cluster) = server();
    let (deleted, object) = tokio::join!(deletion::run(&cluster, "n1", LV), answer(&server, ready()));
    deleted.unwrap();
    assert_eq!(object["metadata"]["name"], json!(format!("orphan-{LV}")));
    assert_eq!(object["metadata"]["annotations"], json!({"topolvm.io/adopt": LV}));
    assert!(server.list_json(VOLUMES).is_empty());
}

#[rstest]
#[case::in_quarantine(LV)]
#[case::former_name(FORMER)]
#[tokio::test]
async fn referenced_lv_is_neither_deleted_nor_restored_otherwise(#[case] lv: &str) {
    let (server, cluster) = server();
    server.apply_json(json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "archive"},
        "spec": {"csi": {"driver": "topolvm.io", "volumeHandle": FORMER}},
    }));
    let flags = RestoreFlags { lv: lv.to_owned(), ..flags(&["--name=back", "--claim=data"]) };
    let restored = restoration::run(&cluster, &flags, "shop").await.unwrap_err().to_string();
    let deleted = deletion::run(&cluster, "n1", lv).await.unwrap_err().to_string();
    assert_eq!(restored, deleted);
    assert!(deleted.contains("PersistentVolume archive refers to") && deleted.contains("undelete --all"), "{deleted}");
    assert!(server.list_json(VOLUMES).is_empty());
}
