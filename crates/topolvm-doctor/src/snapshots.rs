//! VolumeSnapshots and their classes, with the fields that the checks read.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;

/// The resources of [`SNAPSHOT_GROUP`](topolvm_api::SNAPSHOT_GROUP) without which there are no snapshots.
pub const RESOURCES: [&str; 3] = ["volumesnapshotclasses", "volumesnapshotcontents", "volumesnapshots"];

/// A VolumeSnapshotClass.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct SnapshotClass {
    /// Standard object metadata.
    pub metadata: ObjectMeta,
    /// Name of the CSI driver.
    #[serde(default)]
    pub driver: String,
}

/// A VolumeSnapshot.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Snapshot {
    /// Standard object metadata.
    pub metadata: ObjectMeta,
    /// Desired state.
    #[serde(default)]
    pub spec: SnapshotSpec,
    /// Observed state.
    #[serde(default)]
    pub status: SnapshotStatus,
}

/// Desired state of a VolumeSnapshot.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotSpec {
    /// Its class; the default class where there is none.
    pub volume_snapshot_class_name: Option<String>,
    /// Source of the snapshot.
    #[serde(default)]
    pub source: SnapshotSource,
}

/// Source of a VolumeSnapshot.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotSource {
    /// The claim that it is made of.
    pub persistent_volume_claim_name: Option<String>,
}

/// Observed state of a VolumeSnapshot.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotStatus {
    /// The VolumeSnapshotContent, which snapshot-controller makes.
    pub bound_volume_snapshot_content_name: Option<String>,
    /// The least size of a volume that is restored from it.
    pub restore_size: Option<Quantity>,
}
