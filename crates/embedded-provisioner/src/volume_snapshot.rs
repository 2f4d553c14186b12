//! VolumeSnapshots, with the fields that are read.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::ObjectMeta;
use kube::core::NamespaceResourceScope;
use serde::Deserialize;
use topolvm_api::SNAPSHOT_GROUP;

/// A VolumeSnapshot.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct VolumeSnapshot {
    pub(crate) metadata: ObjectMeta,
    #[serde(default)]
    pub(crate) status: VolumeSnapshotStatus,
}

/// Observed state of a VolumeSnapshot.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VolumeSnapshotStatus {
    pub(crate) bound_volume_snapshot_content_name: Option<String>,
    pub(crate) ready_to_use: Option<bool>,
    pub(crate) restore_size: Option<Quantity>,
}

impl kube::Resource for VolumeSnapshot {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "VolumeSnapshot".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        SNAPSHOT_GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "volumesnapshots".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
