//! Reads and builds CSIStorageCapacity objects. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde_json::{Value, json};
use topolvm_api::{ApiFlavor, format_bytes, parse_bytes};
use topolvm_kube::Owner;

/// Label with the name of the driver.
pub(super) const DRIVER_LABEL: &str = "csi.storage.k8s.io/drivername";

/// Label with which external-provisioner recognizes the objects that it manages.
const MANAGED_BY_LABEL: &str = "csi.storage.k8s.io/managed-by";

/// The value of that label for external-provisioner in a Deployment. Our objects have it, too: if external-provisioner
/// publishes again, it takes them over instead of creating its own next to them, of which the scheduler would use the
/// larger.
const MANAGED_BY: &str = "external-provisioner";

/// A StorageClass on a node.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Segment {
    /// The name of the StorageClass.
    pub(super) class: String,
    /// The value of the topology label of the node.
    pub(super) node: String,
}

/// An object, as far as it is compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CapacityObject {
    /// `None` where it is about another topology than a node of this driver.
    pub(super) segment: Option<Segment>,
    pub(super) uid: Option<String>,
    /// Its bytes, if no other field limits the size of volumes.
    bytes: Option<u64>,
    /// True if it has the label of external-provisioner in a Deployment.
    is_managed: bool,
    owners: Vec<String>,
    version: Option<u64>,
}

impl CapacityObject {
    pub(super) fn from_object(flavor: ApiFlavor, object: &CSIStorageCapacity) -> Self {
        let labels = object.metadata.labels.as_ref();
        let owners = object.metadata.owner_references.iter().flatten();
        Self {
            segment: read_segment(flavor, object),
            uid: object.metadata.uid.clone(),
            bytes: match (&object.capacity, &object.maximum_volume_size) {
                (Some(capacity), None) => parse_bytes(capacity).ok(),
                (None, _) | (_, Some(_)) => None,
            },
            is_managed: labels.and_then(|labels| labels.get(MANAGED_BY_LABEL)).is_some_and(|by| by == MANAGED_BY),
            owners: owners.map(|owner| owner.uid.clone()).collect(),
            version: object.metadata.resource_version.as_ref().and_then(|version| version.parse().ok()),
        }
    }

    /// Returns whether the object is as it should be.
    pub(super) fn matches(&self, bytes: u64, owner: Option<&Owner>) -> bool {
        self.bytes == Some(bytes) && self.is_managed && owner.is_none_or(|owner| self.owners.contains(&owner.uid))
    }

    /// Returns whether this is an earlier state of the same object.
    pub(super) fn is_older_than(&self, other: &Self) -> bool {
        self.uid == other.uid && self.version.zip(other.version).is_some_and(|(own, others)| own < others)
    }

    /// Builds an object to create.
    pub(super) fn build(flavor: ApiFlavor, segment: &Segment, bytes: u64, owner: Option<&Owner>) -> CSIStorageCapacity {
        let labels = [(DRIVER_LABEL, flavor.driver_name()), (MANAGED_BY_LABEL, MANAGED_BY)];
        let topology = BTreeMap::from([(flavor.topology_key().to_owned(), segment.node.clone())]);
        CSIStorageCapacity {
            metadata: ObjectMeta {
                generate_name: Some("csisc-".to_owned()),
                labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
                owner_references: owner.map(|owner| vec![owner.reference()]),
                ..ObjectMeta::default()
            },
            storage_class_name: segment.class.clone(),
            node_topology: Some(LabelSelector { match_labels: Some(topology), match_expressions: None }),
            capacity: Some(format_bytes(bytes)),
            maximum_volume_size: None,
        }
    }

    /// Builds a merge patch that makes an object what it should be. The largest volume is left out: the capacity that
    /// nodes publish is that of the largest volume.
    pub(super) fn patch(bytes: u64, owner: Option<&Owner>) -> Value {
        let mut patch = json!({
            "metadata": {"labels": {MANAGED_BY_LABEL: MANAGED_BY}},
            "capacity": format_bytes(bytes),
            "maximumVolumeSize": null,
        });
        if let (Some(owner), Some(metadata)) = (owner, patch.get_mut("metadata").and_then(Value::as_object_mut)) {
            metadata.insert("ownerReferences".to_owned(), json!([owner.reference()]));
        }
        patch
    }
}

/// Returns the StorageClass and the node of an object; `None` if it is about anything else than one node of ours.
fn read_segment(flavor: ApiFlavor, object: &CSIStorageCapacity) -> Option<Segment> {
    let LabelSelector { match_labels, match_expressions } = object.node_topology.as_ref()?;
    let labels = match_labels.as_ref().filter(|labels| labels.len() == 1)?;
    if match_expressions.as_ref().is_some_and(|expressions| !expressions.is_empty()) {
        return None;
    }
    let node = labels.get(flavor.topology_key())?.clone();
    Some(Segment { class: object.storage_class_name.clone(), node })
}
