//! Lists that are pruned as the controller does it.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::json;
use topolvm_api::ApiFlavor::TopoLvm;

use super::capacity::{PUBLISHING, capacity, with_provisioner};
use super::pods::claim;
use super::{faults, of, persistent_volume};
use crate::{examine, prune_capacity, prune_claim, prune_csi_node, prune_node};

#[test]
fn what_is_pruned_is_read_by_no_check() {
    let mut facts = with_provisioner(&PUBLISHING);
    facts.capacities = Ok(vec![of(capacity("n1", "fast", "9", "2026-01-01T00:50:00Z"))]);
    let mut claim: PersistentVolumeClaim =
        of(claim(&json!({"volume.kubernetes.io/selected-node": "n9", "other": "x"})));
    claim.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
    facts.claims = Ok(vec![claim]);
    facts.persistent = Ok(vec![persistent_volume(&json!({
        "metadata": {"name": "v", "labels": {"a": "b"}}, "status": {"phase": "Bound"},
        "spec": {
            "csi": {"driver": "topolvm.io", "volumeHandle": "v", "fsType": "xfs"}, "storageClassName": "fast",
            "claimRef": {"namespace": "shop", "name": "data", "uid": "u"}, "volumeMode": "Filesystem",
        },
    }))]);
    // Of which all that the PersistentVolume says is repeated
    let orphan = json!({"volumes": [{"lv": "w", "logicalVolume": "v", "deviceClass": "ssd", "bytes": 1, "note": ""}]});
    let annotations = facts.nodes.as_mut().unwrap()[0].metadata.annotations.as_mut().unwrap();
    annotations.insert("topolvm.io/orphans".to_owned(), orphan.to_string());
    let node = &mut facts.nodes.as_mut().unwrap()[0];
    let written = |annotation: &str, time: &str| {
        let fields = json!({"f:metadata": {"f:annotations": {format!("f:{annotation}"): {}, "f:other": {}}}});
        of(json!({"manager": "agent", "time": time, "fieldsV1": fields}))
    };
    let labels = [("a", "b"), ("topology.topolvm.io/node", "n2")];
    node.metadata.labels = Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    node.metadata.managed_fields = Some(vec![
        written("capacity.topolvm.io/ssd", "2026-01-01T00:40:00Z"),
        written("another", "2026-01-01T00:59:59Z"),
    ]);
    node.spec = of(json!({"unschedulable": true, "podCIDR": "10.0.0.0/24"}));
    let report = examine(&facts);
    let names: Vec<_> = faults(&report).iter().map(|fault| fault.name).collect();
    assert_eq!(names, ["topology-labels", "capacity-tracking", "selected-nodes", "volumes"], "{report:#?}");
    let restoring = "--claim data --name v-restored --storage-class fast --filesystem xfs";
    assert!(format!("{report:?}").contains(restoring), "{report:#?}");
    facts.nodes.as_mut().unwrap().iter_mut().for_each(|node| prune_node(TopoLvm, node));
    facts.csi_nodes.as_mut().unwrap().iter_mut().for_each(prune_csi_node);
    facts.claims.as_mut().unwrap().iter_mut().for_each(prune_claim);
    facts.capacities.as_mut().unwrap().iter_mut().for_each(prune_capacity);
    assert_eq!(examine(&facts), report);
    let node = &facts.nodes.as_ref().unwrap()[0];
    assert_eq!(node.metadata.managed_fields.as_ref().map(Vec::len), Some(1));
    assert_eq!(node.metadata.labels.as_ref().map(std::collections::BTreeMap::len), Some(1));
    assert_eq!(node.spec.as_ref().unwrap().pod_cidr.as_ref(), None);
}
