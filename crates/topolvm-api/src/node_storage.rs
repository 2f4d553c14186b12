//! The `NodeStorage` resource: the storage of a node, one type for both API groups.

mod disks;
mod evacuation;

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, OwnerReference};
use kube_core::{ClusterResourceScope, Resource, TypeMeta};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ApiFlavor;
use crate::schema;

pub use disks::{DiskGroupStatus, DiskStatus};
pub use evacuation::EvacuationStatus;

/// As of `LogicalVolume`. Fields are only ever added, and an agent rewrites its own object, so that no other version is
/// needed.
const VERSION: &str = "v1";
const KIND: &str = "NodeStorage";
const PLURAL: &str = "nodestorages";

/// The storage of the node whose name it has, written by the agent of that node.
///
/// Cluster-scoped. The Node owns it, so that it goes with the Node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeStorage {
    /// `apiVersion` and `kind`.
    #[serde(flatten, default)]
    pub types: Option<TypeMeta>,
    /// Standard object metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// Observed state; nothing is desired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<NodeStorageStatus>,
}

/// Observed state of the storage of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeStorageStatus {
    /// Size of all volume groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub size: Option<Quantity>,
    /// Free space in all volume groups: extents that no logical volume uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub free: Option<Quantity>,
    /// Volume groups of device classes, and others with volumes that lvmd created.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub volume_groups: Vec<VolumeGroupStatus>,
    /// Device classes of lvmd, in its order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub device_classes: Vec<DeviceClassStatus>,
    /// Thin pools of the volume groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["volumeGroup", "name"]))]
    pub thin_pools: Vec<ThinPoolStatus>,
    /// Disks of the machine, if lvmd has disk groups. Disks that could be added come first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["path"]))]
    pub disks: Vec<DiskStatus>,
    /// Number of disks that are left out because they are too many.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted_disks: u32,
    /// Reason why lvmd could not scan the disks since then. Empty while the list is current.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub disks_stale_reason: String,
    /// Disk groups of lvmd, in its order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub disk_groups: Vec<DiskGroupStatus>,
    /// Problems of the storage, one sentence each, with the fix.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
    /// Conditions: Ready is true while there is no problem, and unknown while lvmd does not answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// A volume group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["name"]))]
pub struct VolumeGroupStatus {
    /// Name of the volume group.
    #[serde(default)]
    pub name: String,
    /// LVM's UUID of the volume group. Empty while LVM does not find it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uuid: String,
    /// Size of the volume group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub size: Option<Quantity>,
    /// Free space that no logical volume uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub free: Option<Quantity>,
    /// Unit of allocation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub extent_size: Option<Quantity>,
    /// Number of physical volumes that LVM does not find.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub missing_physical_volumes: u32,
    /// Reason why LVM could not be asked since then. Empty while the state is current.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stale_reason: String,
    /// Physical volumes, in the order in which LVM allocates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub physical_volumes: Vec<PhysicalVolumeStatus>,
}

/// A physical volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["uuid"]))]
pub struct PhysicalVolumeStatus {
    /// Path of the device. Of a missing disk the last known path, or empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// LVM's UUID of the physical volume.
    #[serde(default)]
    pub uuid: String,
    /// Size of the physical volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub size: Option<Quantity>,
    /// Free space that no logical volume uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub free: Option<Quantity>,
    /// Device number, major:minor. Empty while the disk is missing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub device: String,
    /// True while LVM does not find the disk.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub missing: bool,
    /// True if LVM allocates extents on the disk.
    #[serde(default)]
    pub allocatable: bool,
    /// Progress of the evacuation. Unset if the disk is not evacuated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evacuation: Option<EvacuationStatus>,
    /// Volumes with a part on the disk, while it is missing or is evacuated. Volumes in danger come first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<DiskVolumeStatus>,
    /// Number of volumes that are left out because they are too many.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub omitted_volumes: u32,
}

/// A volume, or a thin pool, with a part on a physical volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["name", "state"]))]
pub struct DiskVolumeStatus {
    /// Name of the logical volume.
    #[serde(default)]
    pub name: String,
    /// State of the volume: lost, failing, degraded or whole.
    #[serde(default)]
    pub state: String,
}

/// A device class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["name", "volumeGroup", "type"]))]
pub struct DeviceClassStatus {
    /// Name of the device class.
    #[serde(default)]
    pub name: String,
    /// True for the default class, which volumes without a class use.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub default: bool,
    /// Type of the device class: thick or thin.
    #[serde(rename = "type", default)]
    pub type_: String,
    /// Volume group of the device class.
    #[serde(default)]
    pub volume_group: String,
    /// Thin pool of a thin class.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub thin_pool: String,
    /// Size of the thin pool, or else of the volume group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub size: Option<Quantity>,
    /// Free space for new volumes: after the spare, and of a thin class with overprovisioning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub free: Option<Quantity>,
    /// Reason why LVM creates no volumes in the class, although it has free space.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub refusal: String,
}

/// A thin pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["volumeGroup", "name"]))]
pub struct ThinPoolStatus {
    /// Volume group of the thin pool.
    #[serde(default)]
    pub volume_group: String,
    /// Name of the thin pool.
    #[serde(default)]
    pub name: String,
    /// Size of the thin pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "schema::quantity")]
    pub size: Option<Quantity>,
    /// Used data in percent, rounded down. Unset while the pool is not active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub data_percent: Option<u32>,
    /// Used metadata in percent, rounded down. Unset while the pool is not active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 100))]
    pub metadata_percent: Option<u32>,
    /// Fault that LVM reports. Empty if there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub problem: String,
}

impl NodeStorage {
    /// Makes the object of a Node, to be created.
    pub fn new(flavor: ApiFlavor, node: &str, node_uid: &str) -> Self {
        let owner = OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: node.to_owned(),
            uid: node_uid.to_owned(),
            ..OwnerReference::default()
        };
        Self {
            types: Some(TypeMeta { api_version: Self::api_version(&flavor).into_owned(), kind: KIND.to_owned() }),
            metadata: ObjectMeta {
                name: Some(node.to_owned()),
                owner_references: Some(vec![owner]),
                ..ObjectMeta::default()
            },
            status: None,
        }
    }

    /// Returns the name of the object, which is that of the Node.
    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Returns the condition `Ready`.
    pub fn ready(&self) -> Option<&Condition> {
        self.status.iter().flat_map(|status| &status.conditions).find(|condition| condition.type_ == "Ready")
    }
}

impl Resource for NodeStorage {
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

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it with a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_storage_round_trips_and_omits_default_values() {
        let json = serde_json::json!({
            "apiVersion": "topolvm.io/v1", "kind": "NodeStorage", "metadata": {"name": "n1"},
            "status": {
                "size": "20Gi", "free": "10Gi",
                "volumeGroups": [{
                    "name": "vg", "uuid": "u", "size": "20Gi", "free": "10Gi", "extentSize": "4Mi",
                    "missingPhysicalVolumes": 1,
                    "physicalVolumes": [
                        {"path": "/dev/sdb", "uuid": "a", "size": "10Gi", "device": "8:16", "allocatable": true},
                        {
                            "uuid": "b", "size": "10Gi", "free": "10Gi", "missing": true, "allocatable": false,
                            "volumes": [{"name": "v", "state": "lost"}], "omittedVolumes": 2,
                        },
                        {
                            "uuid": "c", "allocatable": false,
                            "evacuation": {"state": "moving", "message": "moves", "remaining": "1Gi", "remove": true},
                        },
                    ],
                }],
                "deviceClasses": [{"name": "ssd", "default": true, "type": "thick", "volumeGroup": "vg", "free": "0"}],
                "thinPools": [{"volumeGroup": "vg", "name": "pool", "dataPercent": 7}],
                "disks": [
                    {
                        "path": "/dev/sdc", "stableName": "/dev/disk/by-id/ata-X", "size": "1Ti", "model": "X",
                        "serial": "1", "transport": "sata", "rotational": false, "diskGroup": "vg",
                        "state": "candidate", "message": "is added",
                    },
                    {"path": "/dev/sda", "state": "refused", "reasons": ["in_use"], "message": "in use"},
                ],
                "omittedDisks": 3, "disksStaleReason": "no sysfs",
                "diskGroups": [
                    {"name": "vg", "mode": "auto", "exists": true, "owned": true, "disks": 2, "missingDisks": 1},
                    {"name": "new", "mode": "report", "exists": false, "owned": false, "disks": 0},
                ],
                "problems": ["a disk is missing"],
            },
        });
        let storage: NodeStorage = serde_json::from_value(json.clone()).unwrap();
        assert_eq!(serde_json::to_value(&storage).unwrap(), json);
    }

    #[test]
    fn the_node_owns_its_object() {
        let json = serde_json::to_value(NodeStorage::new(ApiFlavor::Legacy, "n1", "u-1")).unwrap();
        let expected = serde_json::json!({
            "apiVersion": "topolvm.cybozu.com/v1", "kind": "NodeStorage",
            "metadata": {
                "name": "n1",
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u-1"}],
            },
        });
        assert_eq!(json, expected);
    }
}
