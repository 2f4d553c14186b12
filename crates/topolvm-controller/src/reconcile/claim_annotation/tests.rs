use serde_json::{Value, json};
use topolvm_api::ApiFlavor;
use topolvm_testkit::ApiServer;
use topolvm_testkit::fixtures::{LogicalVolumeBuilder, claim, logical_volume};

use super::super::tests::harness::{DEFAULTS, Harness};
use super::{COMPARE_INTERVAL, INTERVAL};

const LVS: &str = "logicalvolumes.topolvm.io";
const PERSISTENT: &str = "persistentvolumes";

/// A volume that its node has made, whose id is its UID.
fn made(name: &str) -> LogicalVolumeBuilder {
    let uid = format!("id-{name}");
    logical_volume(name).uid(&uid).ready(&uid, "1Gi")
}

/// A PersistentVolume that refers to the volume of this id, and its claim `NAMESPACE/NAME`, if any.
fn persistent(id: &str, driver: &str, claim: Option<&str>) -> Value {
    let (namespace, name) = claim.and_then(|claim| claim.split_once('/')).unzip();
    let claim = claim.map(|_| json!({"kind": "PersistentVolumeClaim", "namespace": namespace, "name": name}));
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": format!("pv-{id}")},
        "spec": {"csi": {"driver": driver, "volumeHandle": id}, "claimRef": claim},
    })
}

fn claim_of(server: &ApiServer, resource: &str, name: &str, key: &str) -> Value {
    server.get_json(resource, "", name).unwrap()["metadata"]["annotations"][key].clone()
}

#[tokio::test(start_paused = true)]
async fn claim_annotation_is_set_from_one_persistent_volume_list() {
    let server = ApiServer::new();
    for (name, claim) in [("pvc-1", "shop/data"), ("pvc-2", "shop/logs")] {
        server.apply_json(persistent(&format!("id-{name}"), "topolvm.io", Some(claim)));
    }
    server.apply_json(made("pvc-1").build());
    server.apply_json(made("pvc-2").annotation("topolvm.io/filesystem", "ext4").build());
    server.apply_json(made("pvc-3").annotation("topolvm.io/claim", "other/one").build());
    let harness = Harness::start(&server, DEFAULTS);
    harness.settle().await;
    let claims = ["pvc-1", "pvc-2", "pvc-3"].map(|name| claim_of(&server, LVS, name, "topolvm.io/claim"));
    assert_eq!(json!(claims), json!(["shop/data", "shop/logs", "other/one"]));
    assert_eq!(claim_of(&server, LVS, "pvc-2", "topolvm.io/filesystem"), "ext4");
    tokio::time::sleep(INTERVAL * 5).await;
    assert_eq!((server.count("list", PERSISTENT), server.count("patch", LVS)), (1, 2));
    assert_eq!(server.count("get", PERSISTENT), 0);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn claim_annotation_search_ends_for_volumes_without_a_claim() {
    let server = ApiServer::new();
    for name in ["snapshot", "unbound", "other-driver", "unmade"] {
        let claim = (name != "unbound").then_some("shop/data");
        let driver = if name == "other-driver" { "ebs.example" } else { "topolvm.io" };
        server.apply_json(persistent(&format!("id-{name}"), driver, claim));
    }
    let mut snapshot = json!(made("snapshot").build());
    snapshot["spec"]["accessType"] = json!("ro");
    snapshot["spec"]["source"] = json!("pvc-0");
    server.apply_json(snapshot);
    server.apply_json(logical_volume("unmade").uid("id-unmade").build());
    for name in ["unbound", "other-driver"] {
        server.apply_json(made(name).build());
    }
    let harness = Harness::start(&server, DEFAULTS);
    tokio::time::sleep(INTERVAL * 9).await;
    assert_eq!((server.count("list", PERSISTENT), server.count("patch", LVS)), (3, 0));
    // Another volume is looked for
    server.apply_json(persistent("id-pvc-1", "topolvm.io", Some("shop/data")));
    server.apply_json(made("pvc-1").build());
    tokio::time::sleep(INTERVAL * 2).await;
    assert_eq!(claim_of(&server, LVS, "pvc-1", "topolvm.io/claim"), "shop/data");
    assert_eq!((server.count("list", PERSISTENT), server.count("patch", LVS)), (4, 1));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn claim_annotation_search_repeats_after_a_failed_list_or_patch() {
    let server = ApiServer::new();
    server.apply_json(made("pvc-1").legacy().build());
    for number in 0..200 {
        server.apply_json(persistent(&format!("a-{number}"), "topolvm.cybozu.com", None));
    }
    server.apply_json(persistent("id-pvc-1", "topolvm.cybozu.com", Some("shop/data")));
    let resource = "logicalvolumes.topolvm.cybozu.com";
    server.fail_next("list", PERSISTENT, 1, 500);
    server.fail_next("patch", resource, 1, 500);
    let harness = Harness::start_as(&server, ApiFlavor::Legacy, DEFAULTS);
    tokio::time::sleep(INTERVAL * 5).await;
    assert_eq!(claim_of(&server, resource, "pvc-1", "topolvm.cybozu.com/claim"), "shop/data");
    assert_eq!((server.count("list", PERSISTENT), server.count("patch", resource)), (5, 2));
    harness.end().await;
}

/// A claim that is bound to the PersistentVolume of the volume `pvc-1`, and whose UID the PersistentVolume has, or not.
fn bind(server: &ApiServer, namespace: &str, name: &str, is_owner: bool) {
    let mut bound = json!(claim(name).class("fast").bound_to("pvc-1").build());
    bound["metadata"]["namespace"] = json!(namespace);
    server.apply_json(bound);
    let uid = server.get_json("persistentvolumeclaims", namespace, name).unwrap()["metadata"]["uid"].clone();
    let mut persistent = persistent("id-pvc-1", "topolvm.io", Some(&format!("{namespace}/{name}")));
    persistent["metadata"]["name"] = json!("pvc-1");
    persistent["spec"]["claimRef"]["uid"] = if is_owner { uid } else { json!("another") };
    server.apply_json(persistent);
}

#[tokio::test(start_paused = true)]
async fn claim_that_takes_over_a_persistent_volume_is_written() {
    let server = ApiServer::new();
    server.apply_json(made("pvc-1").annotation("topolvm.io/claim", "mover/prime").build());
    let harness = Harness::start(&server, DEFAULTS);
    harness.settle().await;
    server.fail_next("list", PERSISTENT, 1, 500);
    bind(&server, "shop", "data", true);
    tokio::time::sleep(COMPARE_INTERVAL * 3).await;
    assert_eq!(claim_of(&server, LVS, "pvc-1", "topolvm.io/claim"), "shop/data");
    server.clear_requests();
    tokio::time::sleep(INTERVAL * 3).await;
    assert_eq!((server.count("list", PERSISTENT), server.count("patch", LVS)), (0, 0));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn claim_that_only_names_a_persistent_volume_is_not_written() {
    let server = ApiServer::new();
    server.apply_json(made("pvc-1").annotation("topolvm.io/claim", "shop/data").build());
    bind(&server, "other", "hopeful", false);
    let harness = Harness::start(&server, DEFAULTS);
    tokio::time::sleep(INTERVAL).await;
    assert_eq!(claim_of(&server, LVS, "pvc-1", "topolvm.io/claim"), "shop/data");
    assert_eq!(server.count("list", PERSISTENT), 1);
    harness.end().await;
}
