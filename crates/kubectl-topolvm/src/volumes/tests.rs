//! Rows and problems of made-up objects.

use rstest::rstest;
use serde_json::{Value, json};
use topolvm_api::ApiFlavor::TopoLvm;

use super::*;

const CREATED: &str = "2026-01-01T00:00:00Z";
/// An hour later.
const NOW: Timestamp = Timestamp::constant(1_767_229_200, 0);

/// A bound claim `default/data` with its objects; each may be changed or taken away with null.
fn objects(changes: &Value) -> Objects {
    let mut all = json!({
        "claim": {
            "metadata": {"name": "data", "namespace": "default", "uid": "c1", "creationTimestamp": CREATED},
            "spec": {
                "storageClassName": "fast", "volumeName": "pvc-c1", "resources": {"requests": {"storage": "1Gi"}},
            },
            "status": {"phase": "Bound"},
        },
        "persistent": {
            "metadata": {"name": "pvc-c1", "creationTimestamp": CREATED},
            "spec": {
                "csi": {"driver": "topolvm.io", "volumeHandle": "u1"}, "storageClassName": "fast",
                "persistentVolumeReclaimPolicy": "Delete", "claimRef": {"namespace": "default", "name": "data"},
            },
            "status": {"phase": "Bound"},
        },
        "volume": {
            "metadata": {
                "name": "pvc-c1", "uid": "u1", "creationTimestamp": CREATED, "finalizers": ["topolvm.io/logicalvolume"],
            },
            "spec": {"name": "pvc-c1", "nodeName": "n1", "size": "1Gi", "deviceClass": "ssd"},
            "status": {"volumeID": "u1", "currentSize": "1Gi"},
        },
        "node": {"metadata": {"name": "n1"}},
    });
    merge(&mut all, changes);
    Objects {
        claims: some(&all["claim"]),
        persistent: some(&all["persistent"]),
        volumes: some(&all["volume"]),
        nodes: some(&all["node"]),
        classes: some(&json!({"metadata": {"name": "fast"}, "provisioner": "topolvm.io"})),
    }
}

fn merge(target: &mut Value, changes: &Value) {
    if let Value::Object(changes) = changes
        && target.is_object()
    {
        for (key, value) in changes {
            merge(&mut target[key], value);
        }
    } else {
        *target = changes.clone();
    }
}

fn some<T: serde::de::DeserializeOwned>(value: &Value) -> Vec<T> {
    if value.is_null() { Vec::new() } else { vec![serde_json::from_value(value.clone()).unwrap()] }
}

fn only_row(changes: &Value) -> VolumeRow {
    let rows = rows(TopoLvm, &objects(changes), None, NOW);
    assert_eq!(rows.len(), 1, "{rows:?}");
    rows.into_iter().next().unwrap()
}

#[test]
fn a_volume_is_one_line_from_its_claim_to_its_lv() {
    let row = only_row(&json!({}));
    let expected = VolumeRow {
        namespace: "default".to_owned(),
        claim: "data".to_owned(),
        persistent_volume: "pvc-c1".to_owned(),
        logical_volume: "pvc-c1".to_owned(),
        lv: "u1".to_owned(),
        node: "n1".to_owned(),
        device_class: "ssd".to_owned(),
        storage_class: "fast".to_owned(),
        size_bytes: Some(1 << 30),
        state: "Bound".to_owned(),
        problem: None,
        kind: "logicalvolume.topolvm.io".to_owned(),
    };
    assert_eq!(row, expected);
    let shown = in_table(&[row], true);
    assert_eq!(
        shown.lines().last().unwrap(),
        "default     data    pvc-c1   pvc-c1          n1     ssd     1Gi    Bound   fast           u1"
    );
}

#[rstest]
#[case::no_node(json!({"node": null}), "Bound", "its Node n1 does not exist", "docs/node-maintenance.md")]
#[case::lost(
    json!({"volume": {"status": {"conditions": [{
        "type": "Ready", "status": "False", "reason": "VolumeLost", "message": "gone", "lastTransitionTime": CREATED,
    }]}}}),
    "VolumeLost", "LVM on node n1 no longer has logical volume u1", "vgcfgrestore"
)]
#[case::not_made(
    json!({"persistent": null, "claim": {"spec": {"volumeName": null}, "status": {"phase": "Pending"}},
           "volume": {"status": {"volumeID": "", "currentSize": null, "code": 8, "message": "no enough space"}}}),
    "CreateFailed", "creation failed: no enough space", "free space in the device class ssd of node n1"
)]
#[case::not_grown(
    json!({"volume": {"status": {"code": 13, "message": "lvextend failed"}}}),
    "ExpandFailed", "expansion failed: lvextend failed", "follow the message"
)]
#[case::no_agent(
    json!({"persistent": null, "claim": {"spec": {"volumeName": null}}, "volume": {"status": null}}),
    "Creating", "topolvm-node on node n1 has not yet applied", "check that topolvm-node and lvmd run on node n1"
)]
#[case::no_volume(json!({"volume": null}), "Missing", "its LogicalVolume was deleted", "persistentvolume/pvc-c1")]
#[case::all_lost(
    json!({"volume": null, "persistent": null, "claim": {"status": {"phase": "Lost"}}}),
    "Lost", "the PersistentVolume and LogicalVolume of the claim were deleted", "restore a backup"
)]
#[case::claim_lost(
    json!({"persistent": null, "claim": {"status": {"phase": "Lost"}}}), "Lost",
        "the PersistentVolume of the claim data was deleted",
    "with volumeHandle u1"
)]
#[case::retained(
    json!({"claim": null, "persistent": {
        "spec": {"persistentVolumeReclaimPolicy": "Retain"}, "status": {"phase": "Released"},
    }}),
    "Released", "its claim was deleted, and its PersistentVolume is kept",
        "remove spec.claimRef from persistentvolume/pvc-c1"
)]
#[case::unused(
    json!({"claim": null, "persistent": null}), "Unused", "no PersistentVolume refers to it",
        "kubectl delete logicalvolume pvc-c1"
)]
#[case::in_use(
    json!({"volume": {"metadata": {"deletionTimestamp": CREATED}}}),
    "Deleting", "topolvm-node on node n1 has not removed the LV", "kubectl topolvm events"
)]
#[case::in_use_by_what_is_known(
    json!({"volume": {"metadata": {"deletionTimestamp": CREATED}, "status": {"conditions": [{
        "type": "Removed", "status": "False", "reason": "RemoveFailed", "message": "c1 is the file of /dev/loop7",
        "lastTransitionTime": CREATED
    }]}}}),
    "Deleting", "cannot be removed: c1 is the file of /dev/loop7", "release it from the holder"
)]
#[case::held(
    json!({"volume": {"metadata": {"deletionTimestamp": CREATED, "finalizers": ["other/x"]}}}),
    "Deleting", "other finalizers block the deletion: other/x", "does not remove it"
)]
#[case::kept_away(
    json!({"volume": {"metadata": {"deletionTimestamp": CREATED, "annotations": {"topolvm.io/pendingdeletion": "x"}}}}),
    "Deleting", "its annotation topolvm.io/pendingdeletion", "topolvm.io/pendingdeletion-"
)]
#[case::waits(
    json!({"volume": null, "persistent": null, "claim": {
        "metadata": {"annotations": {"volume.kubernetes.io/storage-provisioner": "topolvm.io"}},
        "spec": {"volumeName": null}, "status": {"phase": "Pending"},
    }}),
    "Pending", "the claim has no volume yet", "kubectl topolvm doctor"
)]
fn what_is_wrong_is_named_with_its_remedy(
    #[case] changes: Value,
    #[case] state: &str,
    #[case] what: &str,
    #[case] remedy: &str,
) {
    let row = only_row(&changes);
    let problem = row.problem.clone().unwrap();
    assert_eq!(row.state, state);
    assert!(problem.what.contains(what) && problem.remedy.contains(remedy), "{problem:?}");
    assert!(in_table(&[row], false).contains(&format!("\n  to do: {}\n", problem.remedy)));
}

#[rstest]
#[case::being_made(json!({"volume": {"metadata": {"creationTimestamp": "2026-01-01T00:59:00Z"}, "status": null},
    "persistent": null, "claim": {"spec": {"volumeName": null}}}))]
#[case::being_deleted(json!({"volume": {"metadata": {"deletionTimestamp": "2026-01-01T00:59:00Z"}}}))]
#[case::snapshot(json!({"claim": null, "persistent": null, "volume": {"spec": {"source": "x", "accessType": "ro"}}}))]
fn what_is_under_way_is_no_problem(#[case] changes: Value) {
    assert_eq!(only_row(&changes).problem, None);
}

#[test]
fn volume_rows_omit_foreign_claims_and_filter_by_namespace() {
    let foreign = objects(&json!({"persistent": {"spec": {"csi": {"driver": "other"}}}}));
    let names = |objects: &Objects, namespace| {
        let rows = rows(TopoLvm, objects, namespace, NOW);
        rows.into_iter().map(|row| format!("{}/{}", row.claim, row.logical_volume)).collect::<Vec<_>>()
    };
    assert_eq!(names(&foreign, None), ["/pvc-c1"]);
    assert_eq!(names(&foreign, Some("default")), Vec::<String>::new());
    assert_eq!(names(&objects(&json!({})), Some("default")), ["data/pvc-c1"]);
}
