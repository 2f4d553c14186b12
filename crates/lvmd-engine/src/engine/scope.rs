//! The part of a volume group in which the volume of a request may lie: where its device class has volumes, or, when
//! the class had another place before or is no longer configured, wherever lvmd created it. topolvm-node names a volume
//! by the UID of its object, so it is the one volume of that name on the machine.

use std::sync::Arc;

use lvm::{FullName, LogicalVolume, LvName, VgName, VolumeGroup};
use lvmd_config::{DeviceClass, DeviceClasses, tags};

use crate::error::Error;

/// The part of a volume group in which the volume of a request may lie.
#[derive(Clone, Debug)]
pub(super) enum Scope {
    /// The place where this class has its volumes.
    Class(Arc<DeviceClass>),
    /// Anywhere, if lvmd or TopoLVM created it: the search through the machine found it in this group.
    Machine(RequestedClass),
}

/// The state of the device class of a request. It decides which volumes outside of the class a search takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestedClass {
    /// The class is configured, and may have had its volumes elsewhere before.
    Configured,
    /// The class is no longer configured, or never was.
    NotConfigured,
}

impl RequestedClass {
    /// Returns the state of the class of this name; the empty name is the default class.
    pub(super) fn of(classes: &DeviceClasses, name: &str) -> Self {
        if classes.get(name).is_some() { Self::Configured } else { Self::NotConfigured }
    }
}

impl Scope {
    /// Returns the volume of a request from its group, and the class whose volumes lie where it lies.
    pub(super) fn find<'a>(
        &self,
        classes: &DeviceClasses,
        known: &'a VolumeGroup,
        name: &LvName,
    ) -> Result<(&'a LogicalVolume, Option<Arc<DeviceClass>>), Error> {
        match self {
            Self::Class(class) => Ok((find_in_class(class, known, name)?, Some(Arc::clone(class)))),
            Self::Machine(requested) => {
                let not_found = || Error::VolumeNotFound(FullName::new(&known.name, name));
                let volume = known.volume(name.as_str()).ok_or_else(not_found)?;
                if !matches_request(classes, known, volume, *requested)? {
                    return Err(not_found());
                }
                Ok((volume, class_that_owns(classes, &known.name, volume)))
            }
        }
    }
}

/// Returns the configured class whose volumes lie where this volume lies.
pub(super) fn class_that_owns(
    classes: &DeviceClasses,
    vg: &VgName,
    volume: &LogicalVolume,
) -> Option<Arc<DeviceClass>> {
    classes.iter().find(|class| class.volume_group == *vg && class.owns(volume)).cloned()
}

/// Returns whether a volume that has the requested name is the requested one. A UUID is the name of one volume only;
/// another name may have been given in two classes, and counts if one of the two is no longer configured. Volumes that
/// TopoLVM created carry no tag of lvmd's and are known by their UUID; where no class has volumes an administrator must
/// tag them.
pub(super) fn matches_request(
    classes: &DeviceClasses,
    group: &VolumeGroup,
    volume: &LogicalVolume,
    requested: RequestedClass,
) -> Result<bool, Error> {
    if volume.attr.holds_volumes() {
        return Ok(false);
    }
    let is_uid = lvm::is_uuid(&volume.name);
    let has_class = class_that_owns(classes, &group.name, volume).is_some();
    if tags::is_managed(volume) || !is_uid {
        let is_unique = is_uid || !has_class || requested == RequestedClass::NotConfigured;
        return Ok(tags::is_managed(volume) && is_unique);
    }
    if has_class {
        return Ok(true);
    }
    let name = FullName::new(&group.name, &volume.name.parse()?);
    let why = format!(
        "has the name that is asked for, but no device class has volumes there and lvmd did not make it; if it is the \
         volume, say so with `lvchange --addtag {} {name}`, or rename it",
        tags::MANAGED
    );
    Err(Error::NotAllowed(name, why))
}

/// Returns a volume of a class. Fails for a volume of this name in another pool, or in none: it may be another
/// program's, and a client must not conclude that the wanted one is gone.
fn find_in_class<'a>(class: &DeviceClass, group: &'a VolumeGroup, name: &LvName) -> Result<&'a LogicalVolume, Error> {
    let not_found = || Error::VolumeNotFound(FullName::new(&group.name, name));
    let not_allowed = |why| Error::NotAllowed(FullName::new(&group.name, name), why);
    let volume = group.volume(name.as_str()).ok_or_else(not_found)?;
    // Volumes that hold other volumes are the administrator's: removing a pool removes everything in it.
    if volume.attr.holds_volumes() {
        return Err(not_allowed("holds other volumes and is not touched".to_owned()));
    }
    if !class.owns(volume) {
        return Err(Error::Elsewhere(FullName::new(&group.name, name), not_in_place(class)));
    }
    Ok(volume)
}

/// Returns the message that a volume of the class's group is not located where the class has its volumes.
pub(super) fn not_in_place(class: &DeviceClass) -> String {
    match &class.thin_pool {
        Some(pool) => format!("is not in thin pool {}, where device class {} keeps its volumes", pool.name, class.name),
        None => format!("is in a thin pool, where device class {} keeps no volumes", class.name),
    }
}
