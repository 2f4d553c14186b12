//! What to do about an object that has the name of a volume to make.

use topolvm_api::{ApiFlavor, LogicalVolume, parse_bytes};

use super::volume::SourceId;
use super::{Difference, Wanted};

/// What to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Existing {
    /// It is what is wanted: wait for it.
    Adopt,
    /// It is on its way out: wait until it is gone and make a new one.
    Leaving,
    /// No volume was made for it and none will be where it is wanted: remove it and make a new one.
    Useless,
    /// It is another volume.
    Differs(Difference),
}

/// Compares the object with what is wanted.
pub(super) fn judge(flavor: ApiFlavor, volume: &LogicalVolume, wanted: &Wanted) -> Existing {
    if volume.is_deleting() {
        return Existing::Leaving;
    }
    let made = volume.volume_id().is_some();
    // Left by a controller that ended before it could delete it. TopoLVM's agent does not try again.
    if !made && volume.failure().is_some() {
        return Existing::Useless;
    }
    if let Some(difference) = difference(flavor, volume, wanted) {
        return Existing::Differs(difference);
    }
    // A volume that was made stays where it is, whatever node the request prefers by now: the answer names its node, and
    // the scheduler follows. One that was not made can be made elsewhere.
    if !made && !wanted.placement.accepts(&volume.spec.node_name) {
        return Existing::Useless;
    }
    Existing::Adopt
}

fn difference(flavor: ApiFlavor, volume: &LogicalVolume, wanted: &Wanted) -> Option<Difference> {
    let spec = &volume.spec;
    if !has_origin(flavor, volume, wanted) {
        return Some(Difference::Source(spec.source.clone()));
    }
    let sizes = [parse_bytes(&spec.size).ok(), volume.current_bytes()];
    if !sizes.into_iter().flatten().any(|bytes| wanted.size.accepts(bytes)) {
        Some(Difference::Size(spec.size.0.clone()))
    } else if spec.device_class != wanted.device_class {
        Some(Difference::DeviceClass(spec.device_class.clone()))
    } else if spec.lvcreate_option_class != wanted.lvcreate_option_class {
        Some(Difference::OptionClass(spec.lvcreate_option_class.clone()))
    } else {
        None
    }
}

/// Whether the object is a copy of the same, for the same use.
fn has_origin(flavor: ApiFlavor, volume: &LogicalVolume, wanted: &Wanted) -> bool {
    let spec = &volume.spec;
    match &wanted.origin {
        None => spec.source.is_empty(),
        Some(origin) => {
            spec.source == origin.name
                && spec.access_type == origin.access.as_str()
                && SourceId::remembered(flavor, volume).is_none_or(|id| id == origin.id)
        }
    }
}
