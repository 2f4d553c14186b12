//! VolumeSnapshotContents, with the fields that are read.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::{ClusterResourceScope, Resource};
use serde::Deserialize;

use crate::same_lv;

/// API group of snapshots.
pub const SNAPSHOT_GROUP: &str = "snapshot.storage.k8s.io";

/// A VolumeSnapshotContent.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct SnapshotContent {
    /// Standard object metadata.
    pub metadata: ObjectMeta,
    /// Desired state.
    #[serde(default)]
    pub spec: SnapshotContentSpec,
    /// Observed state.
    #[serde(default)]
    pub status: SnapshotContentStatus,
}

/// Desired state of a VolumeSnapshotContent.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotContentSpec {
    /// Name of the CSI driver.
    #[serde(default)]
    pub driver: String,
    /// `Delete` or `Retain`: whether the snapshot is deleted with the object.
    #[serde(default)]
    pub deletion_policy: String,
    /// Source of the content.
    #[serde(default)]
    pub source: SnapshotContentSource,
    /// VolumeSnapshot to which the content is bound.
    #[serde(default)]
    pub volume_snapshot_ref: ObjectReference,
    /// Volume mode of the volume that the snapshot is made of.
    pub source_volume_mode: Option<String>,
    /// Name of the VolumeSnapshotClass; a snapshot that existed before needs none.
    pub volume_snapshot_class_name: Option<String>,
}

/// Source of a VolumeSnapshotContent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotContentSource {
    /// CSI id of a snapshot that existed before the object.
    pub snapshot_handle: Option<String>,
    /// CSI id of the volume that the snapshot is made of.
    pub volume_handle: Option<String>,
}

/// Observed state of a VolumeSnapshotContent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotContentStatus {
    /// CSI id of the snapshot, once it is made.
    pub snapshot_handle: Option<String>,
    /// True if a volume can be restored from the snapshot.
    pub ready_to_use: Option<bool>,
    /// Time of the snapshot in nanoseconds since 1970.
    pub creation_time: Option<i64>,
    /// Least size of a restored volume in bytes.
    pub restore_size: Option<i64>,
    /// Error of the last attempt to create the snapshot.
    pub error: Option<SnapshotContentError>,
    /// CSI id of the group that the snapshot belongs to.
    pub volume_group_snapshot_handle: Option<String>,
}

/// Error of an attempt to create a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct SnapshotContentError {
    /// Description for users.
    pub message: Option<String>,
}

impl SnapshotContent {
    /// Returns whether the object refers to the snapshot with this CSI id.
    pub fn refers_to(&self, driver: &str, id: &str) -> bool {
        self.spec.driver == driver && self.handles().any(|handle| handle == id)
    }

    /// Returns whether the object refers to the snapshot with this name in LVM, in quarantine or not.
    pub fn refers_to_lv(&self, driver: &str, lv: &str) -> bool {
        self.spec.driver == driver && self.handles().any(|handle| same_lv(handle, lv))
    }

    fn handles(&self) -> impl Iterator<Item = &String> {
        [&self.spec.source.snapshot_handle, &self.status.snapshot_handle].into_iter().flatten()
    }

    /// Returns whether the object is being deleted and its snapshot with it, for which csi-snapshotter asks.
    pub fn waits_for_removal(&self) -> bool {
        self.metadata.deletion_timestamp.is_some() && self.spec.deletion_policy == "Delete"
    }
}

impl Resource for SnapshotContent {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "VolumeSnapshotContent".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        SNAPSHOT_GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "volumesnapshotcontents".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
