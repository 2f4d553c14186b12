//! The `LogicalVolume` resource: one type for both API groups.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use kube_core::{ClusterResourceScope, Resource, TypeMeta};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::ApiFlavor;
use crate::schema;

const VERSION: &str = "v1";
const KIND: &str = "LogicalVolume";
const PLURAL: &str = "logicalvolumes";

/// A volume that the controller asked for and that the agent of `spec.nodeName` makes.
///
/// Cluster-scoped. Its name is the lower-cased CSI volume name; the LV in LVM is named by its UID.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LogicalVolume {
    /// `apiVersion` and `kind`.
    #[serde(flatten, default)]
    pub types: Option<TypeMeta>,
    /// Standard object metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// Desired state.
    #[serde(default)]
    pub spec: LogicalVolumeSpec,
    /// Observed state; written by the node agent only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<LogicalVolumeStatus>,
    /// Annotations that [`pack_annotations`](Self::pack_annotations) has taken out of the metadata.
    #[serde(skip)]
    pub packed_annotations: Box<[(Box<str>, Box<str>)]>,
}

/// Desired state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["name", "nodeName", "size"], "x-kubernetes-validations" = [
    fixed("name"), fixed("nodeName"), fixed("deviceClass"), fixed("source"),
]))]
pub struct LogicalVolumeSpec {
    /// Name of the volume, equal to metadata.name.
    #[serde(default)]
    pub name: String,
    /// Name of the Node that must own the volume.
    #[serde(default)]
    pub node_name: String,
    /// Requested size in bytes.
    #[serde(default = "zero")]
    #[schemars(schema_with = "schema::quantity")]
    pub size: Quantity,
    /// Device class. Empty means the default class of the node.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub device_class: String,
    /// Class of lvcreate options. Empty means the options of the device class.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub lvcreate_option_class: String,
    /// Name of the LogicalVolume of which this one is a snapshot or clone.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    /// Access to a snapshot or clone: ro or rw.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub access_type: String,
}

/// Observed state of a LogicalVolume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LogicalVolumeStatus {
    /// ID of the volume for CSI and its name in LVM. Empty until the volume exists.
    #[serde(rename = "volumeID", default, skip_serializing_if = "String::is_empty")]
    pub volume_id: String,
    /// gRPC code of the last attempt. OK (0) is left out.
    #[serde(default, skip_serializing_if = "is_ok")]
    pub code: i32,
    /// Error message of the last attempt.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Real size in bytes, rounded up by LVM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub current_size: Option<Quantity>,
    /// Conditions: Ready, and Removed for a deleted object whose LV still exists.
    // Objects that TopoLVM wrote lack these and the size
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// Access to a snapshot or clone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessType {
    /// Only read: snapshots.
    ReadOnly,
    /// Read and written: volumes restored from a snapshot, clones.
    ReadWrite,
}

impl AccessType {
    /// Returns the value in `spec.accessType` and lvmd's `access_type`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ReadOnly => "ro",
            Self::ReadWrite => "rw",
        }
    }

    /// Parses `ro` or `rw`.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "ro" => Some(Self::ReadOnly),
            "rw" => Some(Self::ReadWrite),
            _ => None,
        }
    }
}

impl LogicalVolume {
    /// Makes an object to create; `metadata.name` is `spec.name`.
    pub fn new(flavor: ApiFlavor, spec: LogicalVolumeSpec) -> Self {
        Self {
            types: Some(TypeMeta { api_version: Self::api_version(&flavor).into_owned(), kind: KIND.to_owned() }),
            metadata: ObjectMeta { name: Some(spec.name.clone()), ..ObjectMeta::default() },
            spec,
            status: None,
            packed_annotations: Box::default(),
        }
    }

    /// Returns the name of the object; empty only if no API server has seen it.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Returns the UID of the object, which is the name of the LV that is created for it; empty only if no API server
    /// has seen it.
    pub fn uid(&self) -> &str {
        self.metadata.uid.as_deref().unwrap_or_default()
    }

    /// Returns the id of the volume; none until it exists.
    pub fn volume_id(&self) -> Option<&str> {
        self.status.as_ref().map(|status| status.volume_id.as_str()).filter(|id| !id.is_empty())
    }

    /// Returns the name of the object's LV in LVM: the volume id, which a backup tool may have restored with the
    /// object, and before there is one the UID.
    pub fn lv_name(&self) -> &str {
        self.volume_id().unwrap_or_else(|| self.uid())
    }

    /// Returns the real size in bytes; none if it is not known.
    pub fn current_bytes(&self) -> Option<u64> {
        crate::parse_bytes(self.status.as_ref()?.current_size.as_ref()?).ok()
    }

    /// Returns the failure that the node agent reported, as gRPC code and message.
    pub fn failure(&self) -> Option<(i32, &str)> {
        self.status.as_ref().filter(|status| status.code != 0).map(|status| (status.code, status.message.as_str()))
    }

    /// Returns true for a snapshot, which is a copy that is only read and no volume.
    pub fn is_snapshot(&self) -> bool {
        !self.spec.source.is_empty() && self.spec.access_type == AccessType::ReadOnly.as_str()
    }

    /// Returns true if the object has a deletion timestamp.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Returns the value of an annotation; an empty one counts as none.
    pub fn annotation(&self, key: &str) -> Option<&str> {
        let packed = self.packed_annotations.iter().find(|(name, _)| **name == *key).map(|(_, value)| &**value);
        let value = packed.or_else(|| self.metadata.annotations.as_ref()?.get(key).map(String::as_str));
        value.filter(|value| !value.is_empty())
    }

    /// Makes the object smaller for a cache: the map of annotations in the metadata takes 560 bytes for up to eleven.
    /// An empty one stays, so that a patch that adds an annotation overwrites no other.
    pub fn pack_annotations(&mut self) {
        if let Some(annotations) = &mut self.metadata.annotations {
            let packed = std::mem::take(annotations).into_iter();
            self.packed_annotations = packed.map(|(key, value)| (key.into(), value.into())).collect();
        }
    }

    /// Returns namespace and name of the claim that the volume was created for; `None` if the object does not name it.
    pub fn claim(&self, flavor: ApiFlavor) -> Option<(&str, &str)> {
        self.annotation(flavor.claim())?.split_once('/')
    }

    /// Returns true if the object has the finalizer.
    pub fn has_finalizer(&self, finalizer: &str) -> bool {
        self.metadata.finalizers.iter().flatten().any(|name| name == finalizer)
    }
}

/// Returns the rule that a field of the spec cannot be changed. An empty field counts as none: TopoLVM writes the whole
/// spec, without empty fields, when it changes the size.
fn fixed(field: &str) -> Value {
    let value = |object: &str| format!("(has({object}.{field}) ? {object}.{field} : '')");
    serde_json::json!({
        "fieldPath": format!(".{field}"),
        "rule": format!("{} == {}", value("self"), value("oldSelf")),
        "message": format!("{field} says which volume this is and where, and cannot be changed"),
    })
}

impl Resource for LogicalVolume {
    type DynamicType = ApiFlavor;
    type Scope = ClusterResourceScope;

    fn kind(_: &ApiFlavor) -> Cow<'_, str> {
        KIND.into()
    }

    fn group(flavor: &ApiFlavor) -> Cow<'_, str> {
        flavor.group().into()
    }

    fn version(_: &ApiFlavor) -> Cow<'_, str> {
        VERSION.into()
    }

    fn plural(_: &ApiFlavor) -> Cow<'_, str> {
        PLURAL.into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

fn zero() -> Quantity {
    Quantity("0".to_owned())
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_ok(code: &i32) -> bool {
    *code == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_the_field_are_read_and_written_back_unchanged() {
        let json = serde_json::json!({
            "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume",
            "metadata": {"name": "pvc-1", "uid": "u-1", "finalizers": ["topolvm.io/logicalvolume"]},
            "spec": {
                "name": "pvc-1", "nodeName": "n1", "size": "1Gi", "deviceClass": "ssd", "source": "pvc-0",
                "accessType": "rw",
            },
            "status": {"volumeID": "u-1", "code": 8, "message": "full", "currentSize": "1059Mi"},
        });
        let volume: LogicalVolume = serde_json::from_value(json.clone()).unwrap();
        assert_eq!(volume.volume_id(), Some("u-1"));
        assert_eq!(volume.current_bytes(), Some(1059 << 20));
        assert_eq!(volume.failure(), Some((8, "full")));
        assert_eq!(serde_json::to_value(&volume).unwrap(), json);
    }

    #[test]
    fn the_claim_of_a_volume_is_in_its_annotation() {
        let mut volume: LogicalVolume = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "pvc-1", "annotations": {"topolvm.io/claim": "shop/data"}},
            "spec": {"name": "pvc-1", "nodeName": "n1", "size": "1Gi"},
        }))
        .unwrap();
        assert_eq!(volume.claim(ApiFlavor::TopoLvm), Some(("shop", "data")));
        assert_eq!(volume.claim(ApiFlavor::Legacy), None);
        volume.metadata.annotations = None;
        assert_eq!(volume.claim(ApiFlavor::TopoLvm), None);
    }

    #[test]
    fn packed_annotations_are_read_and_leave_an_empty_map() {
        let mut volume: LogicalVolume = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "pvc-1", "annotations": {"topolvm.io/claim": "shop/data", "empty": ""}},
        }))
        .unwrap();
        volume.pack_annotations();
        assert_eq!(volume.claim(ApiFlavor::TopoLvm), Some(("shop", "data")));
        assert_eq!((volume.annotation("empty"), volume.annotation("other")), (None, None));
        assert_eq!(volume.metadata.annotations, Some([].into()));
        volume.metadata.annotations = None;
        volume.pack_annotations();
        assert_eq!(volume.metadata.annotations, None);
    }

    #[test]
    fn logical_volume_accepts_a_numeric_size_and_no_current_size() {
        let volume: LogicalVolume = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "pvc-1"},
            "spec": {"name": "pvc-1", "nodeName": "n1", "size": 1_073_741_824},
            "status": {"volumeID": "u-1"},
        }))
        .unwrap();
        assert_eq!(crate::parse_bytes(&volume.spec.size), Ok(1 << 30));
        assert_eq!(volume.current_bytes(), None);
        assert_eq!(volume.failure(), None);
    }

    #[test]
    fn code_ok_and_empty_fields_are_left_out() {
        let mut volume = LogicalVolume::new(
            ApiFlavor::Legacy,
            LogicalVolumeSpec {
                name: "a".to_owned(),
                node_name: "n1".to_owned(),
                size: crate::format_bytes(1 << 30),
                ..LogicalVolumeSpec::default()
            },
        );
        volume.status = Some(LogicalVolumeStatus { volume_id: "u".to_owned(), ..LogicalVolumeStatus::default() });
        assert_eq!(
            serde_json::to_value(&volume).unwrap(),
            serde_json::json!({
                "apiVersion": "topolvm.cybozu.com/v1", "kind": "LogicalVolume", "metadata": {"name": "a"},
                "spec": {"name": "a", "nodeName": "n1", "size": "1Gi"}, "status": {"volumeID": "u"},
            })
        );
    }
}
