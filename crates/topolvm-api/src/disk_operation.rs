//! The `DiskOperation` resource: a request of an administrator about a disk of a node, one type for both API groups.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube_core::{ClusterResourceScope, Resource, TypeMeta};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::operation::{OperationStatus, Phase};
use crate::schema;
use crate::{ApiFlavor, ParseQuantityError, parse_bytes};

const VERSION: &str = "v1";
const KIND: &str = "DiskOperation";
const PLURAL: &str = "diskoperations";

/// Seconds after which a finished operation is deleted where `spec.ttlSecondsAfterFinished` is not set: a week.
const DEFAULT_TTL: i32 = 604_800;

/// A request to add, evacuate, remove or replace a disk of a node.
///
/// Cluster-scoped. An administrator creates it; the agent of `spec.nodeName` does what it says, once, and writes the
/// status.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DiskOperation {
    /// `apiVersion` and `kind`.
    #[serde(flatten, default)]
    pub types: Option<TypeMeta>,
    /// Standard object metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// Requested operation; cannot be changed.
    #[serde(default)]
    pub spec: DiskOperationSpec,
    /// State of the operation; written by the agent only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<DiskOperationStatus>,
}

/// Type of a disk operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DiskOperationType {
    /// Adds a blank disk to its disk group, or makes an evacuated disk allocatable again.
    #[default]
    Add,
    /// Moves the volumes of a disk to the other disks of its volume group.
    Evacuate,
    /// Evacuates a disk and takes it out of its volume group.
    Remove,
    /// Gives up a missing disk and rebuilds on other disks the mirrors that have lost it.
    Replace,
}

impl DiskOperationType {
    /// Returns the value of the field.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Add => "Add",
            Self::Evacuate => "Evacuate",
            Self::Remove => "Remove",
            Self::Replace => "Replace",
        }
    }

    /// Returns true if the operation moves volumes, which may take hours.
    pub const fn is_evacuation(self) -> bool {
        matches!(self, Self::Evacuate | Self::Remove)
    }
}

/// Requested operation. It cannot be changed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {"rule": "self == oldSelf", "message": "spec cannot be changed; delete the DiskOperation and create another one"},
    {
        "rule": "!has(self.maxBytesPerSecond) || self.type in ['Evacuate', 'Remove']",
        "message": "maxBytesPerSecond is for the types Evacuate and Remove",
        "fieldPath": ".maxBytesPerSecond"
    },
]))]
pub struct DiskOperationSpec {
    /// Name of the Node that has the disk.
    #[schemars(length(min = 1, max = 253))]
    pub node_name: String,
    /// LVM's UUID of the disk, its name in /dev/disk/by-id with or without the directory, or the path of a disk that
    /// has no such name.
    #[schemars(length(min = 1, max = 1024))]
    pub disk: String,
    /// Add: a blank disk joins its disk group, or an evacuated disk gets new volumes again. Evacuate: its volumes are
    /// moved to the other disks of its volume group, and it gets no new ones. Remove: the same, and the disk leaves its
    /// volume group. Replace: a missing disk is given up, and mirrors that have lost it are rebuilt on other disks.
    #[serde(rename = "type")]
    pub type_: DiskOperationType,
    /// Largest number of bytes that are moved in a second, on average. Unlimited if unset.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "read_quantity")]
    #[schemars(schema_with = "schema::positive_quantity")]
    pub max_bytes_per_second: Option<Quantity>,
    /// Number of seconds after which the finished operation is deleted. 0 deletes it at once.
    #[serde(default = "default_ttl")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: i32,
}

/// State of a disk operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiskOperationStatus {
    /// The part of the state that operations of any kind have.
    #[serde(flatten)]
    pub operation: OperationStatus,
    /// LVM's UUID of the disk. Set once, before any work begins; the operation never affects another disk.
    #[serde(rename = "diskUUID", default, skip_serializing_if = "String::is_empty")]
    pub disk_uuid: String,
    /// Volume group of the disk when diskUUID was set.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub volume_group: String,
    /// Path of the device when diskUUID was set. Empty for a missing disk.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub device_path: String,
}

impl Default for DiskOperationSpec {
    fn default() -> Self {
        Self {
            node_name: String::new(),
            disk: String::new(),
            type_: DiskOperationType::default(),
            max_bytes_per_second: None,
            ttl_seconds_after_finished: DEFAULT_TTL,
        }
    }
}

impl DiskOperation {
    /// Makes an object to create, of which the API server completes the name.
    pub fn new(flavor: ApiFlavor, spec: DiskOperationSpec) -> Self {
        let prefix = format!("{}-{}-", spec.node_name, spec.type_.as_str().to_lowercase());
        Self {
            types: Some(TypeMeta { api_version: Self::api_version(&flavor).into_owned(), kind: KIND.to_owned() }),
            metadata: ObjectMeta { generate_name: Some(prefix), ..ObjectMeta::default() },
            spec,
            status: None,
        }
    }

    /// Returns the name of the object; empty only if no API server has seen it.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Returns the phase, `Pending` before the agent has seen the object.
    pub fn phase(&self) -> Phase {
        self.status.as_ref().map(|status| status.operation.phase).unwrap_or_default()
    }

    /// Returns LVM's UUID of the disk; `None` until it is recorded.
    pub fn disk_uuid(&self) -> Option<&str> {
        self.status.as_ref().map(|status| status.disk_uuid.as_str()).filter(|uuid| !uuid.is_empty())
    }

    /// Returns true if the object is being deleted.
    pub fn is_deleting(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }

    /// Returns the limit in bytes per second; 0 if there is none.
    pub fn bytes_per_second(&self) -> Result<u64, ParseQuantityError> {
        self.spec.max_bytes_per_second.as_ref().map_or(Ok(0), parse_bytes)
    }
}

impl Resource for DiskOperation {
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

const fn default_ttl() -> i32 {
    DEFAULT_TTL
}

/// Reads a quantity that is a string or a number: the API server stores it as an administrator has written it.
fn read_quantity<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Quantity>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum IntOrString {
        Int(i64),
        String(String),
    }
    let value = Option::<IntOrString>::deserialize(deserializer)?;
    Ok(value.map(|value| match value {
        IntOrString::Int(number) => Quantity(number.to_string()),
        IntOrString::String(text) => Quantity(text),
    }))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn object_is_read_and_written_back_unchanged() {
        let json = json!({
            "apiVersion": "topolvm.io/v1", "kind": "DiskOperation", "metadata": {"name": "n1-remove-x"},
            "spec": {
                "nodeName": "n1", "disk": "u-1", "type": "Remove", "maxBytesPerSecond": "100Mi",
                "ttlSecondsAfterFinished": 0,
            },
            "status": {
                "phase": "Running", "message": "1Gi left to move", "diskUUID": "u-1", "volumeGroup": "vg",
                "devicePath": "/dev/sdb", "startTime": "2026-01-01T00:00:00Z",
                "progress": {"totalBytes": "2Gi", "completedBytes": "1Gi", "percent": "50%"},
            },
        });
        let operation: DiskOperation = serde_json::from_value(json.clone()).unwrap();
        assert_eq!(json!(operation), json);
        assert_eq!((operation.phase(), operation.disk_uuid()), (Phase::Running, Some("u-1")));
        assert_eq!(operation.bytes_per_second(), Ok(100 << 20));
    }

    #[rstest]
    #[case(json!(null), 0)]
    #[case(json!(104_857_600), 100 << 20)]
    #[case(json!("100Mi"), 100 << 20)]
    fn rate_may_be_a_number_or_a_quantity(#[case] rate: Value, #[case] expected: u64) {
        let spec = json!({"nodeName": "n1", "disk": "u", "type": "Evacuate", "maxBytesPerSecond": rate});
        let operation: DiskOperation = serde_json::from_value(json!({ "spec": spec })).unwrap();
        assert_eq!(operation.bytes_per_second(), Ok(expected));
        assert_eq!(operation.spec.ttl_seconds_after_finished, 604_800);
    }

    #[test]
    fn name_begins_with_node_and_type() {
        let spec = DiskOperationSpec {
            node_name: "n1".to_owned(),
            type_: DiskOperationType::Evacuate,
            ..DiskOperationSpec::default()
        };
        let operation = DiskOperation::new(ApiFlavor::Legacy, spec);
        assert_eq!(operation.metadata.generate_name.as_deref(), Some("n1-evacuate-"));
        assert_eq!(operation.types.unwrap().api_version, "topolvm.cybozu.com/v1");
    }
}
