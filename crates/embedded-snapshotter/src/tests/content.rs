//! VolumeSnapshotContents.

use serde_json::{Value, json};
use topolvm_api::SnapshotContent;

use crate::snapshot_content::NAMES;

/// Returns a content that snapshot-controller has created for the VolumeSnapshot `monday` of the volume `v-1`.
pub(crate) fn dynamic_json(changes: &[Value]) -> Value {
    changed(
        json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
            "metadata": {"name": "content", "uid": "c-1", "finalizers": [NAMES.finalizer]},
            "spec": {
                "deletionPolicy": "Delete", "driver": "topolvm.io", "source": {"volumeHandle": "v-1"},
                "sourceVolumeMode": "Filesystem", "volumeSnapshotClassName": "fast",
                "volumeSnapshotRef": {"namespace": "web", "name": "monday", "uid": "0abc-1def"},
            },
        }),
        changes,
    )
}

/// Returns a content that an administrator has created for the snapshot `s-0`.
pub(crate) fn pre_provisioned_json(changes: &[Value]) -> Value {
    let source = json!({"spec": {
        "source": {"volumeHandle": null, "snapshotHandle": "s-0"}, "sourceVolumeMode": null,
        "volumeSnapshotClassName": null,
    }});
    changed(dynamic_json(&[source]), changes)
}

/// Returns a dynamic content as it is read.
pub(crate) fn dynamic(changes: &[Value]) -> SnapshotContent {
    serde_json::from_value(dynamic_json(changes)).unwrap()
}

/// Returns a pre-provisioned content as it is read.
pub(crate) fn pre_provisioned(changes: &[Value]) -> SnapshotContent {
    serde_json::from_value(pre_provisioned_json(changes)).unwrap()
}

fn changed(mut object: Value, changes: &[Value]) -> Value {
    for change in changes {
        json_patch::merge(&mut object, change);
    }
    object
}
