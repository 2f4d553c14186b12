mod rebuilt_claims;

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};
use topolvm_api::ApiFlavor;
use topolvm_testkit::ApiServer;
use topolvm_testkit::api_server::Failure;
use topolvm_testkit::fixtures::{ClaimBuilder, claim, logical_volume, node, storage_class};

use super::super::ControllerSettings;
use super::super::tests::harness::{DEFAULTS, Harness};
use super::*;

const LVS: &str = "logicalvolumes.topolvm.io";
const CLAIMS: &str = "persistentvolumeclaims";
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";

/// Nodes n1 and n2, each with a claim that the scheduler sent there and its volume.
fn cluster() -> ApiServer {
    let server = ApiServer::new();
    server.apply_json(storage_class("ours").build());
    server.apply_json(storage_class("theirs").provisioner("ebs.example").build());
    for name in ["n1", "n2"] {
        server.apply_json(node(name).finalizer("topolvm.io/node").build());
        server.apply_json(claim(&format!("data-{name}")).class("ours").selected_node(name).build());
        let (volume, id) = (format!("pvc-{name}"), format!("id-{name}"));
        let volume = logical_volume(&volume).on(name).uid(&id).ready(&id, "1Gi").finalizer("topolvm.io/logicalvolume");
        server.apply_json(volume.build());
    }
    server
}

/// Binds a claim to a PersistentVolume of this name, whose volume has this id.
fn bind(server: &ApiServer, claim: PersistentVolumeClaim, persistent_volume: &str, driver: &str, handle: &str) {
    let name = claim.name_any();
    server.apply_json(claim);
    let uid = server.get_json(CLAIMS, "default", &name).unwrap()["metadata"]["uid"].clone();
    server.apply_json(json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": persistent_volume},
        "spec": {
            "claimRef": {"namespace": "default", "name": name, "uid": uid},
            "csi": {"driver": driver, "volumeHandle": handle},
            "persistentVolumeReclaimPolicy": "Delete",
        },
        "status": {"phase": "Bound"},
    }));
}

/// Returns the node that the scheduler has selected for a claim.
fn node_of(server: &ApiServer, claim: &str) -> Value {
    let claim = server.get_json(CLAIMS, "default", claim).unwrap();
    claim["metadata"]["annotations"][SELECTED_NODE].clone()
}

/// Makes the reclaim policy of a PersistentVolume, and takes its claim off it if `claim` is false.
fn edit_persistent_volume(server: &ApiServer, policy: &str, phase: &str, claim: bool) {
    server.edit("persistentvolumes", "", "pvc-n1", |object| {
        object["spec"]["persistentVolumeReclaimPolicy"] = json!(policy);
        object["status"]["phase"] = json!(phase);
        if !claim {
            object["spec"]["claimRef"] = Value::Null;
        }
    });
}

#[rstest]
#[case::retained("Retain", "Bound", true, true)]
#[case::retained_and_released("Retain", "Released", true, true)]
#[case::free_for_a_claim("Delete", "Available", false, true)]
#[case::to_be_deleted("Delete", "Bound", true, false)]
#[case::being_deleted("Delete", "Released", true, false)]
#[tokio::test(start_paused = true)]
async fn volume_stays_whose_persistent_volume_outlives_the_claim(
    #[case] policy: &str,
    #[case] phase: &str,
    #[case] has_claim: bool,
    #[case] stays: bool,
) {
    let server = cluster();
    bind(&server, bound("bound-n1", "pvc-n1").build(), "pvc-n1", "topolvm.io", "id-n1");
    edit_persistent_volume(&server, policy, phase, has_claim);
    let harness = Harness::start(&server, DEFAULTS);
    server.delete("nodes", "", "n1");
    harness.gone("nodes", "", "n1").await;
    let kept = server.get_json(LVS, "", "pvc-n1").map(|volume| volume["metadata"]["finalizers"].clone());
    assert_eq!(kept, stays.then(|| json!(["topolvm.io/logicalvolume"])));
    assert_eq!(harness.has(CLAIMS, "default", "bound-n1"), !has_claim, "pods of the claim can be created elsewhere");
    harness.end().await;
}

/// A claim of ours that is bound to this PersistentVolume.
fn bound(name: &str, persistent_volume: &str) -> ClaimBuilder {
    claim(name).class("ours").bound_to(persistent_volume)
}

#[tokio::test(start_paused = true)]
async fn node_deletion_removes_only_its_claims_and_volumes() {
    let server = cluster();
    bind(&server, bound("bound-n1", "pvc-n1").selected_node("n1").build(), "pvc-n1", "topolvm.io", "id-n1");
    let harness = Harness::start(&server, DEFAULTS);
    harness.settle().await;
    assert!(harness.has(CLAIMS, "default", "data-n1"), "nothing happens before");
    server.delete("nodes", "", "n1");
    harness.gone("nodes", "", "n1").await;
    assert_eq!(node_of(&server, "data-n1"), Value::Null, "without a volume it may go elsewhere");
    assert!(!harness.has(CLAIMS, "default", "bound-n1"));
    assert!(!harness.has(LVS, "", "pvc-n1"));
    for (resource, namespace, name) in [("nodes", "", "n2"), (CLAIMS, "default", "data-n2"), (LVS, "", "pvc-n2")] {
        assert!(harness.has(resource, namespace, name), "{name} is of another node");
    }
    let mut events = harness.events();
    events.sort();
    let event = |name: &str| ("NodeDeleted".to_owned(), name.to_owned());
    assert_eq!(events, [event("bound-n1"), event("data-n1"), event("pvc-n1")]);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn node_deletion_before_the_start_is_reconciled() {
    let server = cluster();
    server.delete("nodes", "", "n1");
    let harness = Harness::start(&server, DEFAULTS);
    harness.gone("nodes", "", "n1").await;
    assert_eq!(node_of(&server, "data-n1"), Value::Null);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn several_nodes_that_wait_for_the_list_of_claims_all_go() {
    let server = cluster();
    server.fail_next("list", CLAIMS, 3, 500);
    for name in ["n1", "n2"] {
        server.delete("nodes", "", name);
    }
    let harness = Harness::start(&server, DEFAULTS);
    for name in ["n1", "n2"] {
        let gone = tokio::time::timeout(Duration::from_mins(1), harness.gone("nodes", "", name)).await;
        assert!(gone.is_ok(), "Node {name} is still there");
    }
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn the_legacy_group_has_its_own_finalizers() {
    let server = ApiServer::new();
    server.apply_json(node("n1").legacy().finalizer("topolvm.cybozu.com/node").finalizer("topolvm.io/node").build());
    let volume = logical_volume("pvc-1").legacy().finalizer("topolvm.cybozu.com/logicalvolume").build();
    server.apply_json(volume);
    server.delete("nodes", "", "n1");
    let harness = Harness::start_as(&server, ApiFlavor::Legacy, DEFAULTS);
    harness.gone("logicalvolumes.topolvm.cybozu.com", "", "pvc-1").await;
    harness.settle().await;
    assert_eq!(server.get_json("nodes", "", "n1").unwrap()["metadata"]["finalizers"], json!(["topolvm.io/node"]));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn with_skip_node_finalize_only_the_node_is_deleted() {
    let server = cluster();
    let harness = Harness::start(&server, ControllerSettings { skip_node_finalize: true, ..DEFAULTS });
    server.delete("nodes", "", "n1");
    harness.gone("nodes", "", "n1").await;
    assert!(harness.has(CLAIMS, "default", "data-n1"));
    let volume = server.get_json(LVS, "", "pvc-n1").unwrap();
    assert_eq!(volume["metadata"]["finalizers"], json!(["topolvm.io/logicalvolume"]));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn claims_of_other_drivers_stay() {
    let server = cluster();
    server.apply_json(claim("by-class").class("theirs").selected_node("n1").build());
    let mut by_annotation = claim("by-annotation").class("ours").selected_node("n1").build();
    by_annotation.annotations_mut().insert(PROVISIONER.to_owned(), "ebs.example".to_owned());
    server.apply_json(by_annotation);
    server.apply_json(claim("without-class").selected_node("n1").build());
    let harness = Harness::start(&server, DEFAULTS);
    server.delete("nodes", "", "n1");
    harness.gone("nodes", "", "n1").await;
    for name in ["by-class", "by-annotation", "without-class"] {
        assert!(harness.has(CLAIMS, "default", name), "{name}");
    }
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn node_deletion_removes_immediately_bound_claims() {
    let server = cluster();
    let mut immediate = bound("immediate", "pvc-n1").build();
    immediate.annotations_mut().insert(PROVISIONER.to_owned(), "topolvm.io".to_owned());
    bind(&server, immediate, "pvc-n1", "topolvm.io", "id-n1");
    let harness = Harness::start(&server, DEFAULTS);
    server.delete("nodes", "", "n1");
    harness.gone("nodes", "", "n1").await;
    assert!(!harness.has(CLAIMS, "default", "immediate"));
    harness.end().await;
}

/// Scheduled to the deleted node: the annotation survives binding, and the volume may have been made elsewhere.
#[rstest]
#[case::its_volume("pvc-n1", "topolvm.io", "id-n1", false)]
#[case::under_another_name("by-hand", "topolvm.io", "id-n1", false)]
#[case::a_volume_of_another_node("pvc-n2", "topolvm.io", "id-n2", true)]
#[case::a_volume_of_another_node_under_the_name_of_one_of_this("pvc-n1", "topolvm.io", "id-n2", true)]
#[case::a_volume_without_an_object("pvc-lost", "topolvm.io", "id-lost", true)]
#[case::a_volume_of_another_driver("pvc-n1", "ebs.example", "id-n1", true)]
#[tokio::test(start_paused = true)]
async fn of_a_bound_claim_only_its_volume_decides(
    #[case] persistent_volume: &str,
    #[case] driver: &str,
    #[case] handle: &str,
    #[case] stays: bool,
) {
    let server = cluster();
    let scheduled = bound("scheduled", persistent_volume).selected_node("n1").build();
    bind(&server, scheduled, persistent_volume, driver, handle);
    let harness = Harness::start(&server, DEFAULTS);
    server.delete("nodes", "", "n1");
    harness.gone("nodes", "", "n1").await;
    assert_eq!(harness.has(CLAIMS, "default", "scheduled"), stays);
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn node_deletion_removes_claims_scheduled_to_another_node() {
    let server = cluster();
    bind(&server, bound("elsewhere", "pvc-n1").selected_node("n2").build(), "pvc-n1", "topolvm.io", "id-n1");
    let harness = Harness::start(&server, DEFAULTS);
    server.delete("nodes", "", "n1");
    harness.gone("nodes", "", "n1").await;
    assert!(!harness.has(CLAIMS, "default", "elsewhere"));
    harness.end().await;
}

/// By `volumeName`: no annotation names the driver or a node, and the class may be none.
#[rstest]
#[case::with_its_class("ours", "pvc-n1")]
#[case::without_a_class("", "pvc-n1")]
#[case::with_another_persistent_volume("", "by-hand")]
#[tokio::test(start_paused = true)]
async fn claim_bound_by_hand_is_deleted_with_its_volume(#[case] class: &str, #[case] persistent_volume: &str) {
    let server = cluster();
    let by_hand = claim("by-hand").class(class).bound_to(persistent_volume).build();
    bind(&server, by_hand, persistent_volume, "topolvm.io", "id-n1");
    let of_others = claim("of-others").class(class).bound_to("pvc-n2").build();
    bind(&server, of_others, "pvc-n2", "topolvm.io", "id-n2");
    bind(&server, claim("foreign").class(class).bound_to("nfs").build(), "nfs", "nfs.example", "id-n1");
    let harness = Harness::start(&server, DEFAULTS);
    server.delete("nodes", "", "n1");
    harness.gone("nodes", "", "n1").await;
    assert!(!harness.has(CLAIMS, "default", "by-hand"));
    assert!(!harness.has(LVS, "", "pvc-n1"));
    for name in ["of-others", "foreign"] {
        assert!(harness.has(CLAIMS, "default", name), "{name}");
    }
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn volume_of_a_claim_to_rebuild_is_left_whatever_its_name() {
    let server = cluster();
    let mut by_hand = claim("by-hand").class("ours").bound_to("by-hand").build();
    by_hand.annotations_mut().insert("topolvm.io/rebuild".to_owned(), "on-node-deleted".to_owned());
    bind(&server, by_hand, "by-hand", "topolvm.io", "id-n1");
    let harness = Harness::start_composed(&server, |controllers| controllers.rebuilds_claims = true);
    server.delete("nodes", "", "n1");
    harness.gone("nodes", "", "n1").await;
    assert!(harness.has(CLAIMS, "default", "by-hand"));
    assert!(harness.has(LVS, "", "pvc-n1"));
    harness.end().await;
}

#[rstest]
#[case::without_its_persistent_volume(|_: &ApiServer| {})]
#[case::beside_the_claim_that_has_the_persistent_volume(|server: &ApiServer| {
    bind(server, bound("owner", "pvc-n1").build(), "pvc-n1", "topolvm.io", "id-n1");
})]
#[tokio::test(start_paused = true)]
async fn a_claim_that_only_names_a_volume_of_the_node_stays(#[case] prepare: fn(&ApiServer)) {
    let server = cluster();
    server.apply_json(bound("hopeful", "pvc-n1").selected_node("n1").build());
    prepare(&server);
    let harness = Harness::start(&server, DEFAULTS);
    server.delete("nodes", "", "n1");
    harness.gone("nodes", "", "n1").await;
    assert!(harness.has(CLAIMS, "default", "hopeful"));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn node_deletion_removes_a_claim_bound_to_a_late_volume() {
    let server = cluster();
    server.before_next("delete", LVS, |server| {
        let late = logical_volume("pvc-late").on("n1").uid("id-late").ready("id-late", "1Gi");
        server.apply_json(late.finalizer("topolvm.io/logicalvolume").build());
        bind(server, bound("late", "pvc-late").selected_node("n1").build(), "pvc-late", "topolvm.io", "id-late");
    });
    let harness = Harness::start(&server, DEFAULTS);
    server.delete("nodes", "", "n1");
    harness.gone("nodes", "", "n1").await;
    assert!(!harness.has(CLAIMS, "default", "late"));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_was_sent_to_another_node_meanwhile_stays() {
    let server = cluster();
    let harness = Harness::start(&server, DEFAULTS);
    harness.settle().await;
    server.before_next("patch", CLAIMS, |server| {
        server.edit(CLAIMS, "default", "data-n1", |claim| {
            claim["metadata"]["annotations"][SELECTED_NODE] = json!("n2");
        });
    });
    server.delete("nodes", "", "n1");
    harness.gone("nodes", "", "n1").await;
    assert_eq!(node_of(&server, "data-n1"), "n2");
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn finalizer_added_meanwhile_is_not_removed() {
    let server = cluster();
    let add = |object: &mut Value| object["metadata"]["finalizers"].as_array_mut().unwrap().push(json!("other/one"));
    server.edit("nodes", "", "n2", add);
    server.before_next("patch", LVS, move |server| server.edit(LVS, "", "pvc-n1", add));
    let harness = Harness::start(&server, DEFAULTS);
    server.delete("nodes", "", "n1");
    harness.gone("nodes", "", "n1").await;
    let volume = server.get_json(LVS, "", "pvc-n1").unwrap();
    assert_eq!(volume["metadata"]["finalizers"], json!(["other/one"]));
    // The annotation stops the agent before the object is deleted
    assert_eq!(volume["metadata"]["annotations"]["topolvm.io/pendingdeletion"], json!("true"));
    assert!(!volume["metadata"]["deletionTimestamp"].is_null());
    server.delete("nodes", "", "n2");
    harness.gone(LVS, "", "pvc-n2").await;
    harness.settle().await;
    assert_eq!(server.get_json("nodes", "", "n2").unwrap()["metadata"]["finalizers"], json!(["other/one"]));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_created_meanwhile_is_deleted_too() {
    let server = cluster();
    server.before_next("delete", LVS, |server| {
        server.apply_json(logical_volume("late").on("n1").finalizer("topolvm.io/logicalvolume").build());
    });
    let harness = Harness::start(&server, DEFAULTS);
    server.delete("nodes", "", "n1");
    harness.gone("nodes", "", "n1").await;
    assert!(!harness.has(LVS, "", "late"));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn node_finalizer_stays_until_cleanup_succeeds_despite_failures() {
    for (verb, resource) in [
        ("get", "nodes"),
        ("list", LVS),
        ("get", CLAIMS),
        ("list", "persistentvolumes"),
        ("delete", CLAIMS),
        ("patch", CLAIMS),
        ("patch", LVS),
        ("delete", LVS),
        ("patch", "nodes"),
    ] {
        for failure in [Failure::Status(500), Failure::Status(409), Failure::Unreachable, Failure::LostAnswer] {
            let server = cluster();
            bind(&server, bound("bound", "pvc-n1").selected_node("n1").build(), "pvc-n1", "topolvm.io", "id-n1");
            let what = format!("{verb} {resource} {failure:?}");
            let harness = Harness::start(&server, DEFAULTS);
            harness.settle().await;
            server.inject(verb, resource, 1, failure);
            server.delete("nodes", "", "n1");
            harness.gone("nodes", "", "n1").await;
            assert!(!harness.has(CLAIMS, "default", "bound"), "{what}");
            assert_eq!(node_of(&server, "data-n1"), Value::Null, "{what}");
            assert!(!harness.has(LVS, "", "pvc-n1"), "{what}");
            harness.end().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn node_deletion_without_field_selectors_removes_own_volumes() {
    let server = cluster();
    server.set_selectable_fields(LVS, &[]);
    let harness = Harness::start(&server, DEFAULTS);
    server.delete("nodes", "", "n1");
    harness.gone("nodes", "", "n1").await;
    assert!(!harness.has(LVS, "", "pvc-n1"));
    assert!(harness.has(LVS, "", "pvc-n2"));
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn disk_operations_of_the_node_are_deleted() {
    const OPERATIONS: &str = "diskoperations.topolvm.io";
    let server = cluster();
    for node in ["n1", "n2"] {
        for (state, finalizers) in [("running", json!(["topolvm.io/diskoperation"])), ("finished", json!([]))] {
            server.apply_json(json!({
                "apiVersion": "topolvm.io/v1", "kind": "DiskOperation",
                "metadata": {"name": format!("{node}-{state}"), "finalizers": finalizers},
                "spec": {"nodeName": node, "disk": "u", "type": "Evacuate"},
            }));
        }
    }
    let harness = Harness::start(&server, DEFAULTS);
    server.delete("nodes", "", "n1");
    harness.gone("nodes", "", "n1").await;
    for state in ["running", "finished"] {
        assert!(!harness.has(OPERATIONS, "", &format!("n1-{state}")), "{state}");
        assert!(harness.has(OPERATIONS, "", &format!("n2-{state}")), "{state}");
    }
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn nodes_are_released_without_the_definition_of_operations() {
    let server = cluster();
    server.withdraw("diskoperations.topolvm.io");
    let harness = Harness::start(&server, DEFAULTS);
    server.delete("nodes", "", "n1");
    harness.gone("nodes", "", "n1").await;
    harness.end().await;
}

#[tokio::test(start_paused = true)]
async fn requests_are_per_node_and_not_per_cluster() {
    let server = cluster();
    for number in 0..50 {
        server.apply_json(logical_volume(&format!("other-{number}")).on("n2").build());
        server.apply_json(claim(&format!("other-{number}")).class("ours").selected_node("n2").build());
    }
    let harness = Harness::start(&server, DEFAULTS);
    harness.settle().await;
    server.clear_requests();
    server.delete("nodes", "", "n1");
    harness.gone("nodes", "", "n1").await;
    harness.settle().await;
    let requests: Vec<_> = server.requests().into_iter().filter(|(verb, _)| *verb != "watch").collect();
    assert!(requests.len() <= 13, "{requests:#?}");
    harness.end().await;
}
