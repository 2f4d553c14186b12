//! VolumeGroupSnapshotContents, with the fields that are read.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use kube::core::ClusterResourceScope;
use serde::Deserialize;
use topolvm_api::SnapshotContentError;

/// API group of volume group snapshots.
pub(crate) const GROUP_SNAPSHOT_GROUP: &str = "groupsnapshot.storage.k8s.io";

/// A VolumeGroupSnapshotContent.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct GroupSnapshotContent {
    pub(crate) metadata: ObjectMeta,
    #[serde(default)]
    pub(crate) spec: GroupSnapshotContentSpec,
    #[serde(default)]
    pub(crate) status: GroupSnapshotContentStatus,
}

/// Desired state of a VolumeGroupSnapshotContent.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GroupSnapshotContentSpec {
    /// Name of the CSI driver.
    #[serde(default)]
    pub(crate) driver: String,
    /// `Delete` or `Retain`: whether the snapshots are deleted with the object.
    #[serde(default)]
    pub(crate) deletion_policy: String,
    #[serde(default)]
    pub(crate) source: GroupSnapshotContentSource,
    /// VolumeGroupSnapshot to which the content is bound.
    #[serde(default)]
    pub(crate) volume_group_snapshot_ref: ObjectReference,
    /// Name of the VolumeGroupSnapshotClass; a group that existed before needs none.
    pub(crate) volume_group_snapshot_class_name: Option<String>,
}

/// Source of a VolumeGroupSnapshotContent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GroupSnapshotContentSource {
    /// CSI ids of the volumes that the snapshots are made of.
    #[serde(default)]
    pub(crate) volume_handles: Vec<String>,
    /// CSI ids of a group that existed before the object.
    pub(crate) group_snapshot_handles: Option<GroupSnapshotHandles>,
}

/// CSI ids of a group that existed before, and of its snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GroupSnapshotHandles {
    #[serde(default)]
    pub(crate) volume_group_snapshot_handle: String,
    #[serde(default)]
    pub(crate) volume_snapshot_handles: Vec<String>,
}

/// Observed state of a VolumeGroupSnapshotContent.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GroupSnapshotContentStatus {
    /// CSI id of the group, once it is made.
    pub(crate) volume_group_snapshot_handle: Option<String>,
    /// True if volumes can be restored from all snapshots.
    pub(crate) ready_to_use: Option<bool>,
    pub(crate) creation_time: Option<Time>,
    /// Error of the last attempt to create the group.
    pub(crate) error: Option<SnapshotContentError>,
    #[serde(default)]
    pub(crate) volume_snapshot_info_list: Vec<SnapshotInfo>,
}

/// A snapshot of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SnapshotInfo {
    /// CSI id of the snapshot.
    #[serde(default)]
    pub(crate) snapshot_handle: String,
}

impl Resource for GroupSnapshotContent {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "VolumeGroupSnapshotContent".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        GROUP_SNAPSHOT_GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "volumegroupsnapshotcontents".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
