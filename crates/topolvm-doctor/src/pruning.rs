//! Takes from objects what no check reads, so that a long list of them stays small.

use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus, NodeSystemInfo, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSINode, CSIStorageCapacity};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry, ObjectMeta};
use serde_json::{Value, json};
use topolvm_api::{ApiFlavor, SELECTED_NODE};

/// Keeps of a Node only its names and times, the topology label, free space, LVs without a LogicalVolume, and the
/// fields that show whether pods may run there and on which kernel.
pub fn prune_node(flavor: ApiFlavor, node: &mut Node) {
    let metadata = &mut node.metadata;
    metadata.labels = metadata.labels.take().and_then(|mut labels| {
        labels.retain(|key, _| key == flavor.topology_key());
        (!labels.is_empty()).then_some(labels)
    });
    if let Some(annotations) = &mut metadata.annotations {
        annotations.retain(|key, _| flavor.is_capacity_annotation(key) || key == flavor.orphans());
    }
    let entries = metadata.managed_fields.take().unwrap_or_default();
    let entries: Vec<_> = entries.into_iter().filter_map(|entry| prune_entry(flavor, entry)).collect();
    metadata.managed_fields = Some(entries).filter(|entries| !entries.is_empty());
    let unschedulable = node.spec.as_ref().and_then(|spec| spec.unschedulable);
    node.spec = Some(NodeSpec { unschedulable, ..NodeSpec::default() });
    let info = node.status.take().and_then(|status| status.node_info);
    let kernel = |info: NodeSystemInfo| NodeSystemInfo { kernel_version: info.kernel_version, ..Default::default() };
    node.status = Some(NodeStatus { node_info: info.map(kernel), ..NodeStatus::default() });
}

/// Keeps of an entry only the annotations with free space that were written, and when; none if it contains none.
fn prune_entry(flavor: ApiFlavor, mut entry: ManagedFieldsEntry) -> Option<ManagedFieldsEntry> {
    let fields = entry.fields_v1.take()?.0;
    let annotations = fields.pointer("/f:metadata/f:annotations").and_then(Value::as_object)?;
    let is_ours = |key: &&String| key.strip_prefix("f:").is_some_and(|name| flavor.is_capacity_annotation(name));
    let ours = annotations.keys().filter(is_ours);
    let ours: serde_json::Map<_, _> = ours.map(|key| (key.clone(), json!({}))).collect();
    if ours.is_empty() {
        return None;
    }
    let fields_v1 = Some(FieldsV1(json!({"f:metadata": {"f:annotations": ours}})));
    Some(ManagedFieldsEntry { time: entry.time, fields_v1, ..ManagedFieldsEntry::default() })
}

/// Leaves of a claim all but who has written it, its labels, and annotations of others.
pub fn prune_claim(claim: &mut PersistentVolumeClaim) {
    drop_notes(&mut claim.metadata);
    if let Some(annotations) = &mut claim.metadata.annotations {
        annotations.retain(|key, _| key == SELECTED_NODE);
    }
}

/// Leaves of a CSINode its name and the drivers.
pub fn prune_csi_node(node: &mut CSINode) {
    drop_notes(&mut node.metadata);
    node.metadata.annotations = None;
}

/// Keeps of a CSIStorageCapacity object all except its labels and the details of its managed fields.
pub fn prune_capacity(capacity: &mut CSIStorageCapacity) {
    capacity.metadata.labels = None;
    for entry in capacity.metadata.managed_fields.iter_mut().flatten() {
        entry.fields_v1 = None;
    }
}

fn drop_notes(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    metadata.labels = None;
}
