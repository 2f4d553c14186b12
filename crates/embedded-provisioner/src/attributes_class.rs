//! VolumeAttributesClasses, with the fields that are read. They are in storage.k8s.io/v1 since Kubernetes 1.34.

use std::borrow::Cow;
use std::collections::BTreeMap;

use kube::api::ObjectMeta;
use kube::core::ClusterResourceScope;
use serde::Deserialize;

/// A VolumeAttributesClass.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AttributesClass {
    pub(crate) metadata: ObjectMeta,
    pub(crate) driver_name: String,
    #[serde(default)]
    pub(crate) parameters: BTreeMap<String, String>,
}

impl kube::Resource for AttributesClass {
    type DynamicType = ();
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        "VolumeAttributesClass".into()
    }

    fn group((): &()) -> Cow<'_, str> {
        "storage.k8s.io".into()
    }

    fn version((): &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        "volumeattributesclasses".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
