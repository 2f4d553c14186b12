//! VolumeGroupSnapshotContents.

use serde_json::{Value, json};

use crate::group_content::GroupSnapshotContent;
use crate::group_snapshot::NAMES;

/// Returns a content that snapshot-controller has created for the VolumeGroupSnapshot `monday` of two volumes.
pub(crate) fn dynamic_group_json(changes: &[Value]) -> Value {
    let mut object = json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshotContent",
        "metadata": {"name": "content", "uid": "c-1", "finalizers": [NAMES.finalizer]},
        "spec": {
            "deletionPolicy": "Delete", "driver": "topolvm.io", "source": {"volumeHandles": ["v-1", "v-2"]},
            "volumeGroupSnapshotClassName": "fast",
            "volumeGroupSnapshotRef": {"namespace": "web", "name": "monday", "uid": "0abc-1def"},
        },
    });
    for change in changes {
        json_patch::merge(&mut object, change);
    }
    object
}

/// Returns a content that an administrator has created for the group `g-0`.
pub(crate) fn pre_provisioned_group_json(changes: &[Value]) -> Value {
    let handles = json!({"volumeGroupSnapshotHandle": "g-0", "volumeSnapshotHandles": ["s-1", "s-2"]});
    let source = json!({"spec": {
        "source": {"volumeHandles": null, "groupSnapshotHandles": handles}, "volumeGroupSnapshotClassName": null,
    }});
    dynamic_group_json(&[&[source], changes].concat())
}

/// Returns a dynamic content as it is read.
pub(crate) fn dynamic_group(changes: &[Value]) -> GroupSnapshotContent {
    serde_json::from_value(dynamic_group_json(changes)).unwrap()
}

/// Returns a pre-provisioned content as it is read.
pub(crate) fn pre_provisioned_group(changes: &[Value]) -> GroupSnapshotContent {
    serde_json::from_value(pre_provisioned_group_json(changes)).unwrap()
}
