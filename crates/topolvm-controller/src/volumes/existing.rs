//! Compares an existing object with the request for a volume of the same name.

use topolvm_api::{ApiFlavor, LogicalVolume, SnapshotGroup, parse_bytes};

use super::VolumeRequest;
use super::volume::ContentSource;

/// The result of the comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Existing {
    /// It is the volume that is requested: wait for it.
    Matches,
    /// It is being deleted: wait until it is gone and create a new one.
    BeingDeleted,
    /// It has no volume and will have none where one is requested: delete it and create a new one.
    Unprovisioned,
    /// It is another volume, with this property.
    Differs(String),
}

/// Compares the object with the request.
pub(super) fn compare_existing(flavor: ApiFlavor, object: &LogicalVolume, request: &VolumeRequest) -> Existing {
    if object.is_deleting() {
        return Existing::BeingDeleted;
    }
    let is_provisioned = object.volume_id().is_some();
    // Left by a controller that ended before it could delete it. TopoLVM's agent does not try again.
    if !is_provisioned && object.failure().is_some() {
        return Existing::Unprovisioned;
    }
    if let Some(difference) = find_difference(flavor, object, request) {
        return Existing::Differs(difference);
    }
    // A provisioned volume stays where it is, whatever node the request prefers by now: the answer names its node, and
    // the scheduler follows. One that is not can be provisioned elsewhere.
    if !is_provisioned && !request.placement.accepts(&object.spec.node_name) {
        return Existing::Unprovisioned;
    }
    Existing::Matches
}

fn find_difference(flavor: ApiFlavor, object: &LogicalVolume, request: &VolumeRequest) -> Option<String> {
    let spec = &object.spec;
    if !has_same_source(flavor, object, request) {
        return Some(match spec.source.as_str() {
            "" => "and is not a copy".to_owned(),
            source => format!("as a copy of {source}, or with another access type"),
        });
    }
    if SnapshotGroup::of(flavor, object).as_ref() != request.source.as_ref().and_then(|source| source.group.as_ref()) {
        return Some("with another number of members of its group of snapshots, or in no group".to_owned());
    }
    let sizes = [parse_bytes(&spec.size).ok(), object.current_bytes()];
    if !sizes.into_iter().flatten().any(|bytes| request.size.accepts(bytes)) {
        Some(format!("with a size of {}", spec.size.0))
    } else if spec.device_class != request.device_class {
        Some(format!("in device class {:?}", spec.device_class))
    } else if spec.lvcreate_option_class != request.lvcreate_option_class {
        Some(format!("with lvcreate option class {:?}", spec.lvcreate_option_class))
    } else {
        None
    }
}

/// Returns whether the object is a copy of the requested source, with the requested access.
fn has_same_source(flavor: ApiFlavor, object: &LogicalVolume, request: &VolumeRequest) -> bool {
    let spec = &object.spec;
    match &request.source {
        None => spec.source.is_empty(),
        Some(source) => {
            spec.source == source.object_name
                && spec.access_type == source.access.as_str()
                && ContentSource::from_annotations(flavor, object).is_none_or(|id| id == source.id)
        }
    }
}
