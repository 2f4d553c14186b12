use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::sync::watch;
use topolvm_proto::csi::Topology;
use topolvm_testkit::api_server::Failure;
use topolvm_testkit::fixtures::node;

use super::harness::{Bench, CLAIMS, DRIVER, EVENTS, VOLUMES, claim, class, csi_node, server, settle};

#[tokio::test(start_paused = true)]
async fn claim_with_a_node_gets_a_volume_with_three_requests() {
    let bench = Bench::start().await;
    bench.server.clear_requests();
    bench.apply(claim("data", json!({}))).await;
    let volume = bench.volume("pvc-uid-data").unwrap();
    assert_eq!(volume["spec"]["claimRef"]["uid"], "uid-data");
    assert_eq!(volume["spec"]["csi"]["volumeHandle"], "id-pvc-uid-data");
    let request = bench.driver.created.lock()[0].clone();
    assert_eq!(request.capacity_range.unwrap().required_bytes, 1 << 30);
    assert_eq!(request.parameters["csi.storage.k8s.io/pvc/name"], "data");
    assert_eq!(bench.reasons(), ["Provisioning", "ProvisioningSucceeded"]);
    let writes = [("create", VOLUMES), ("create", EVENTS)].map(|(verb, kind)| bench.server.count(verb, kind));
    assert_eq!((writes, bench.server.requests().len()), ([1, 2], 3), "{:?}", bench.server.requests());
    // The claim is bound, and the watch shows it
    bench.apply(claim("data", json!({"spec": {"volumeName": "pvc-uid-data"}}))).await;
    assert_eq!(bench.created(), 1);
}

#[tokio::test(start_paused = true)]
async fn provisioning_begins_when_the_driver_is_ready() {
    let (ready, driver_ready) = watch::channel(false);
    let bench = Bench::start_when(driver_ready, server(), Arc::default()).await;
    bench.apply(claim("data", json!({}))).await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    assert_eq!((bench.created(), bench.events()), (0, Vec::new()));
    ready.send_replace(true);
    settle().await;
    assert_eq!(bench.created(), 1);
}

#[rstest]
#[case::other_driver(json!({"metadata": {"annotations": {"volume.kubernetes.io/storage-provisioner": "ebs.example"}}}))]
#[case::without_driver(json!({"metadata": {"annotations": {"volume.kubernetes.io/storage-provisioner": null}}}))]
#[case::without_node(json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": ""}}}))]
#[case::bound(json!({"spec": {"volumeName": "other"}}))]
#[case::being_deleted(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["a/b"]}}))]
#[case::class_of_other_driver(json!({"spec": {"storageClassName": "other"}}))]
#[case::without_class(json!({"spec": {"storageClassName": null}}))]
#[tokio::test(start_paused = true)]
async fn claim_gets_no_volume(#[case] changes: Value) {
    let bench = Bench::start().await;
    bench.server.apply_json(class("other", json!({"provisioner": "ebs.example"})));
    bench.apply(claim("data", changes)).await;
    assert_eq!((bench.created(), bench.events()), (0, Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn claim_with_its_class_in_an_annotation_gets_a_volume() {
    let bench = Bench::start().await;
    let annotations = json!({"volume.beta.kubernetes.io/storage-class": "fast"});
    let changes = json!({"metadata": {"annotations": annotations}, "spec": {"storageClassName": null}});
    bench.apply(claim("data", changes)).await;
    assert_eq!(bench.created(), 1);
}

#[tokio::test(start_paused = true)]
async fn foreign_claims_and_volumes_cause_no_requests() {
    let bench = Bench::start().await;
    bench.server.clear_requests();
    let foreign = json!({"metadata": {"annotations": {"volume.kubernetes.io/storage-provisioner": "ebs.example"}}});
    for number in 0..500 {
        bench.server.apply_json(claim(&format!("c-{number}"), foreign.clone()));
        bench.server.apply_json(json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": format!("v-{number}")},
            "spec": {"persistentVolumeReclaimPolicy": "Delete", "csi": {"driver": "ebs.example", "volumeHandle": "v"}},
            "status": {"phase": "Released"},
        }));
    }
    settle().await;
    assert_eq!((bench.server.requests(), bench.created(), bench.deleted()), (Vec::new(), 0, Vec::new()));
}

#[tokio::test(start_paused = true)]
async fn claim_waits_for_its_class_and_for_a_node() {
    let bench = Bench::start().await;
    let changes = json!({"spec": {"storageClassName": "late"},
                         "metadata": {"annotations": {"volume.kubernetes.io/selected-node": ""}}});
    bench.apply(claim("data", changes)).await;
    bench.server.apply_json(class("late", json!({})));
    settle().await;
    assert_eq!(bench.created(), 0);
    bench.apply(claim("data", json!({"spec": {"storageClassName": "late"}}))).await;
    assert_eq!(bench.created(), 1);
}

fn segments(topologies: &[Topology]) -> Vec<String> {
    topologies.iter().map(|topology| topology.segments["topology.topolvm.io/node"].clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn immediate_claims_are_spread_over_all_nodes() {
    let server = server();
    server.apply_json(node("n2").build());
    server.apply_json(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "without-driver"}}));
    server.apply_json(class("now", json!({"volumeBindingMode": "Immediate"})));
    let bench = Bench::start_with(server, Arc::default()).await;
    let now = json!({"spec": {"storageClassName": "now"},
                     "metadata": {"annotations": {"volume.kubernetes.io/selected-node": null}}});
    for name in ["www-web-0", "www-web-1"] {
        bench.apply(claim(name, now.clone())).await;
    }
    let requests = bench.driver.created.lock().clone();
    let of = |index: usize| requests[index].accessibility_requirements.clone().unwrap();
    assert_eq!(segments(&of(0).requisite), ["n1", "n2"]);
    assert_ne!(segments(&of(0).preferred)[0], segments(&of(1).preferred)[0]);
}

#[tokio::test(start_paused = true)]
async fn allowed_topologies_may_name_any_label_of_a_node() {
    let server = server();
    for (name, zone) in [("n1", "z1"), ("n2", "z2")] {
        let mut object = json!(node(name).build());
        object["metadata"]["labels"]["zone"] = json!(zone);
        server.apply_json(csi_node(name, &[DRIVER]));
        (object["apiVersion"], object["kind"]) = (json!("v1"), json!("Node"));
        server.apply_json(object);
    }
    let terms = json!([{"matchLabelExpressions": [{"key": "zone", "values": ["z2"]}]}]);
    server.apply_json(class("zoned", json!({"allowedTopologies": terms})));
    server.apply_json(class("now", json!({"allowedTopologies": terms, "volumeBindingMode": "Immediate"})));
    let bench = Bench::start_with(server, Arc::default()).await;
    let on = |node: Option<&str>, class: &str| {
        json!({"spec": {"storageClassName": class},
               "metadata": {"annotations": {"volume.kubernetes.io/selected-node": node}}})
    };
    bench.apply(claim("a", on(Some("n2"), "zoned"))).await;
    bench.apply(claim("b", on(None, "now"))).await;
    let requests = bench.driver.created.lock().clone();
    for request in &requests {
        assert_eq!(segments(&request.accessibility_requirements.as_ref().unwrap().requisite), ["n2"]);
    }
    assert_eq!(requests.len(), 2);
    // The labels of a node have changed since the scheduler selected it
    bench.apply(claim("c", on(Some("n1"), "zoned"))).await;
    assert_eq!(bench.claim("c")["metadata"]["annotations"]["volume.kubernetes.io/selected-node"], Value::Null);
    assert!(bench.events().iter().any(|(_, note)| note.contains("not in allowedTopologies")), "{:?}", bench.events());
}

#[tokio::test(start_paused = true)]
async fn attributes_class_becomes_mutable_parameters() {
    let bench = Bench::start().await;
    let attributes = |name: &str, driver: &str| {
        json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass", "metadata": {"name": name},
               "driverName": driver, "parameters": {"topolvm.io/lvcreate-option-class": "raid"}})
    };
    bench.server.apply_json(attributes("gold", "topolvm.io"));
    bench.server.apply_json(attributes("foreign", "ebs.example"));
    for name in ["gold", "foreign", "missing"] {
        bench.apply(claim(name, json!({"spec": {"volumeAttributesClassName": name}}))).await;
    }
    assert_eq!(bench.created(), 1);
    assert_eq!(bench.driver.created.lock()[0].mutable_parameters["topolvm.io/lvcreate-option-class"], "raid");
    assert_eq!(bench.volume("pvc-uid-gold").unwrap()["spec"]["volumeAttributesClassName"], "gold");
    let notes: Vec<_> = bench.server.event_notes("ProvisioningFailed");
    assert!(notes.iter().any(|note| note.contains("for the driver ebs.example")), "{notes:?}");
    assert!(notes.iter().any(|note| note.contains("missing does not exist")), "{notes:?}");
}

#[tokio::test(start_paused = true)]
async fn provisioner_secret_is_read_for_creation_and_deletion() {
    let bench = Bench::start().await;
    bench.server.apply_json(json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "key-of-data", "namespace": "secrets"}, "data": {"password": "aGVsbG8="}}));
    let parameters = json!({"csi.storage.k8s.io/provisioner-secret-name": "key-of-${pvc.name}",
                            "csi.storage.k8s.io/provisioner-secret-namespace": "secrets"});
    bench.server.apply_json(class("locked", json!({"parameters": parameters})));
    bench.apply(claim("data", json!({"spec": {"storageClassName": "locked"}}))).await;
    assert_eq!(bench.driver.created.lock()[0].secrets["password"], "hello");
    bench.release("data", "pvc-uid-data").await;
    assert_eq!(bench.driver.deleted.lock()[0].secrets["password"], "hello");
}

#[tokio::test(start_paused = true)]
async fn volume_of_an_earlier_process_is_not_created_again() {
    let server = server();
    server.apply_json(claim("data", json!({})));
    server.apply_json(claim("new", json!({})));
    server.apply_json(json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pvc-uid-data"},
        "spec": {"csi": {"driver": "topolvm.io", "volumeHandle": "id"},
                 "claimRef": {"namespace": "default", "name": "data", "uid": "uid-data"}},
    }));
    let bench = Bench::start_with(server, Arc::default()).await;
    assert_eq!((bench.created(), bench.server.count("get", VOLUMES)), (1, 0));
    assert_eq!(bench.driver.created.lock()[0].name, "pvc-uid-new");
}

#[tokio::test(start_paused = true)]
async fn claim_that_loses_its_volume_before_it_is_bound_gets_another() {
    let bench = Bench::start().await;
    bench.apply(claim("data", json!({}))).await;
    bench.server.edit(VOLUMES, "", "pvc-uid-data", |volume| volume["metadata"]["finalizers"] = json!([]));
    bench.server.delete(VOLUMES, "", "pvc-uid-data");
    settle().await;
    assert_eq!((bench.created(), bench.server.count("get", CLAIMS)), (2, 1));
    assert!(bench.volume("pvc-uid-data").is_some());
}

/// The watch of PersistentVolumes is ahead of that of claims.
#[rstest]
#[case::bound(false)]
#[case::deleted(true)]
#[tokio::test(start_paused = true)]
async fn claim_of_a_deleted_volume_gets_none_before_its_watch(#[case] is_deleted: bool) {
    let bench = Bench::start().await;
    bench.apply(claim("data", json!({}))).await;
    let old: PersistentVolumeClaim = serde_json::from_value(bench.claim("data")).unwrap();
    bench.apply(claim("data", json!({"spec": {"volumeName": "pvc-uid-data"}}))).await;
    if is_deleted {
        bench.server.delete(CLAIMS, "default", "data");
    }
    settle().await;
    bench.show_claim(old.clone()).await;
    bench.server.edit(VOLUMES, "", "pvc-uid-data", |volume| volume["metadata"]["finalizers"] = json!([]));
    bench.server.delete(VOLUMES, "", "pvc-uid-data");
    settle().await;
    let mut changed = old;
    changed.metadata.annotations.get_or_insert_default().insert("a".to_owned(), "b".to_owned());
    bench.show_claim(changed).await;
    assert_eq!((bench.created(), bench.server.list_json(VOLUMES)), (1, vec![]));
}

#[rstest]
#[case::refused(Failure::Status(500))]
#[case::unreachable(Failure::Unreachable)]
#[case::answer_lost(Failure::LostAnswer)]
#[tokio::test(start_paused = true)]
async fn persistent_volume_is_created_until_it_is_saved(#[case] failure: Failure) {
    let bench = Bench::start().await;
    bench.server.inject("create", VOLUMES, 2, failure);
    bench.apply(claim("data", json!({}))).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(bench.volume("pvc-uid-data").unwrap()["spec"]["claimRef"]["uid"], "uid-data");
    assert!(bench.reasons().contains(&"ProvisioningSucceeded".to_owned()));
    assert_eq!(bench.deleted(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn claim_is_read_from_its_watch_only() {
    let bench = Bench::start().await;
    bench.apply(claim("data", json!({}))).await;
    assert_eq!((bench.server.count("get", CLAIMS), bench.server.count("list", CLAIMS)), (0, 1));
}
