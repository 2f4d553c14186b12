//! Reads what a PersistentVolumeClaim reserves. Pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::ResourceExt as _;
use topolvm_api::{ApiFlavor, GIB, SECTOR_SIZE, SELECTED_NODE, parse_bytes};

use crate::minimum_allocation::{MinimumAllocation, VolumeMode};
use crate::storage_class::ClassParameters;

/// Annotations with which kube-controller-manager names the driver of a claim.
const PROVISIONER: [&str; 2] =
    ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"];

/// The sources of data that a driver copies itself.
const CLAIM: &str = "PersistentVolumeClaim";
const SNAPSHOT: &str = "VolumeSnapshot";
const SNAPSHOT_GROUP: &str = "snapshot.storage.k8s.io";

/// A claim that waits for its volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PendingClaim {
    pub(crate) namespace: Box<str>,
    pub(crate) name: Box<str>,
    /// Its StorageClass.
    pub(crate) class: Box<str>,
    /// The node that the scheduler has selected. Without one the claim reserves nothing.
    pub(crate) node: Option<Box<str>>,
    /// The bytes that it asks for.
    requested: u64,
    is_block: bool,
}

impl PendingClaim {
    /// Reads a claim; `None` when it has its volume, is being deleted, is another driver's, or gets its volume from
    /// elsewhere. That its StorageClass is another driver's is not known here.
    pub(crate) fn from_claim(flavor: ApiFlavor, claim: &PersistentVolumeClaim) -> Option<Self> {
        let annotations = claim.annotations();
        let node = annotations.get(SELECTED_NODE).filter(|node| !node.is_empty());
        let provisioner = PROVISIONER.iter().find_map(|name| annotations.get(*name));
        if provisioner.is_some_and(|driver| driver != flavor.driver_name())
            || claim.metadata.deletion_timestamp.is_some()
        {
            return None;
        }
        let spec = claim.spec.as_ref()?;
        if spec.volume_name.as_ref().is_some_and(|name| !name.is_empty()) || !is_provisioned(spec) {
            return None;
        }
        let size = spec.resources.as_ref().and_then(|resources| resources.requests.as_ref()?.get("storage"));
        Some(Self {
            namespace: claim.metadata.namespace.as_deref().unwrap_or_default().into(),
            name: claim.metadata.name.as_deref().unwrap_or_default().into(),
            class: spec.storage_class_name.as_deref()?.into(),
            node: node.map(|node| node.as_str().into()),
            requested: size.and_then(|size| parse_bytes(size).ok()).unwrap_or(0),
            is_block: spec.volume_mode.as_deref() == Some("Block"),
        })
    }

    /// Returns the bytes of the volume that CreateVolume will make for it.
    pub(crate) fn bytes(&self, class: &ClassParameters, minimums: &MinimumAllocation) -> u64 {
        let mode = if self.is_block { VolumeMode::Block } else { VolumeMode::Filesystem(class.filesystem.clone()) };
        let bytes = match self.requested.max(minimums.for_mode(&mode)) {
            0 => GIB,
            bytes => bytes,
        };
        bytes.checked_next_multiple_of(SECTOR_SIZE).unwrap_or(bytes)
    }
}

/// Returns whether external-provisioner creates a volume for a claim. It refuses a `selector`, with which backup tools
/// keep a claim for a PersistentVolume of theirs, and leaves other sources of data to volume populators, whose own
/// claim reserves the bytes.
fn is_provisioned(spec: &PersistentVolumeClaimSpec) -> bool {
    let is_copied = |group: Option<&str>, kind: &str| {
        matches!((group.unwrap_or_default(), kind), ("", CLAIM) | (SNAPSHOT_GROUP, SNAPSHOT))
    };
    let source = spec.data_source.as_ref();
    let reference = spec.data_source_ref.as_ref();
    spec.selector.is_none()
        && source.is_none_or(|source| is_copied(source.api_group.as_deref(), &source.kind))
        && reference.is_none_or(|source| is_copied(source.api_group.as_deref(), &source.kind))
}

/// Returns how long ago the node was selected, as the API server has noted; `None` where it has not.
pub(crate) fn selection_age(claim: &PersistentVolumeClaim, now: Timestamp) -> Option<Duration> {
    let entries = claim.metadata.managed_fields.iter().flatten().filter(|entry| owns_selected_node(entry));
    let selected = entries.filter_map(|entry| entry.time.as_ref().map(|time| time.0)).max()?;
    // Clocks differ a little
    Some(Duration::try_from(now.duration_since(selected)).unwrap_or_default())
}

fn owns_selected_node(entry: &ManagedFieldsEntry) -> bool {
    let annotations = entry.fields_v1.as_ref().and_then(|fields| fields.0.get("f:metadata")?.get("f:annotations"));
    annotations.is_some_and(|annotations| annotations.get(format!("f:{SELECTED_NODE}")).is_some())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;
    use topolvm_testkit::fixtures::{claim, storage_class};

    use super::*;

    const FLAVOR: ApiFlavor = ApiFlavor::TopoLvm;
    const MIB: u64 = 1 << 20;
    const MINIMUMS: MinimumAllocation =
        MinimumAllocation { block: 8 * MIB, ext4: 32 * MIB, xfs: 300 * MIB, btrfs: 200 * MIB };

    /// A claim that reserves, with some of its fields replaced.
    fn reserving(changes: serde_json::Value) -> Option<PendingClaim> {
        let mut object = json!(claim("data").class("fast").selected_node("n1").build());
        json_merge(&mut object, changes);
        PendingClaim::from_claim(FLAVOR, &serde_json::from_value(object).unwrap())
    }

    fn json_merge(object: &mut serde_json::Value, changes: serde_json::Value) {
        let serde_json::Value::Object(members) = changes else {
            *object = changes;
            return;
        };
        for (name, value) in members {
            json_merge(&mut object[name], value);
        }
    }

    #[rstest]
    #[case::selected(json!({}), true)]
    #[case::said_to_be_ours(json!({"metadata": {"annotations": {PROVISIONER[0]: "topolvm.io"}}}), true)]
    #[case::foreign(json!({"metadata": {"annotations": {PROVISIONER[1]: "ebs.example"}}}), false)]
    #[case::not_selected(json!({"metadata": {"annotations": null}}), false)]
    #[case::given_up(json!({"metadata": {"annotations": {SELECTED_NODE: ""}}}), false)]
    #[case::bound(json!({"spec": {"volumeName": "pvc-1"}}), false)]
    #[case::deleted(json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), false)]
    #[case::without_class(json!({"spec": {"storageClassName": null}}), false)]
    #[case::selector(json!({"spec": {"selector": {"matchLabels": {"velero.io/dynamic-pv-restore": "a"}}}}), false)]
    #[case::populator(json!({"spec": {"dataSourceRef": {"apiGroup": "a.example", "kind": "A", "name": "a"}}}), false)]
    #[case::old_populator(json!({"spec": {"dataSource": {"apiGroup": "a.example", "kind": "A", "name": "a"}}}), false)]
    #[case::clone(json!({"spec": {"dataSource": {"kind": "PersistentVolumeClaim", "name": "a"}}}), true)]
    #[case::snapshot(json!({"spec": {"dataSourceRef": {
        "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "a",
    }}}), true)]
    fn a_claim_reserves_while_it_waits_on_a_selected_node(#[case] changes: serde_json::Value, #[case] reserves: bool) {
        assert_eq!(reserving(changes).and_then(|claim| claim.node).is_some(), reserves);
    }

    #[rstest]
    #[case::as_asked("1Gi", "", GIB)]
    #[case::minimum("1Mi", "xfs", 300 * MIB)]
    #[case::whole_sectors("1073741825", "", GIB + SECTOR_SIZE)]
    #[case::nothing_asked("0", "zfs", GIB)]
    fn it_reserves_what_the_volume_will_take(#[case] size: &str, #[case] filesystem: &str, #[case] bytes: u64) {
        let class = storage_class("fast").parameter("csi.storage.k8s.io/fstype", filesystem).build();
        let class = ClassParameters::from_class(FLAVOR, &class).unwrap();
        let pending = reserving(json!({"spec": {"resources": {"requests": {"storage": size}}}})).unwrap();
        assert_eq!(pending.bytes(&class, &MINIMUMS), bytes);
    }

    #[test]
    fn a_device_has_a_minimum_of_its_own() {
        let class = ClassParameters::from_class(FLAVOR, &storage_class("fast").build()).unwrap();
        let small = json!({"spec": {"volumeMode": "Block", "resources": {"requests": {"storage": "1Mi"}}}});
        assert_eq!(reserving(small).unwrap().bytes(&class, &MINIMUMS), 8 * MIB);
    }

    #[test]
    fn the_api_server_notes_when_the_node_was_selected() {
        let entry = |time: &str, annotation: &str| {
            let fields = json!({"f:metadata": {"f:annotations": {format!("f:{annotation}"): {}}}});
            json!({"manager": "kube-scheduler", "operation": "Update", "time": time, "fieldsV1": fields})
        };
        let mut object = json!(claim("data").build());
        object["metadata"]["managedFields"] =
            json!([entry("2026-01-01T00:00:10Z", SELECTED_NODE), entry("2026-01-01T00:09:00Z", "other")]);
        let claim: PersistentVolumeClaim = serde_json::from_value(object).unwrap();
        let at = |time: &str| selection_age(&claim, time.parse().unwrap());
        assert_eq!(at("2026-01-01T00:01:00Z"), Some(Duration::from_secs(50)));
        assert_eq!(at("2026-01-01T00:00:00Z"), Some(Duration::ZERO));
        assert_eq!(selection_age(&PersistentVolumeClaim::default(), "2026-01-01T00:00:00Z".parse().unwrap()), None);
    }
}
