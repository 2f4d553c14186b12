//! What changes LVM: create, resize, remove.

use std::sync::Arc;

use lvm::{CommandRunner, LogicalVolume, LvName, NewVolume, Tag, VolumeGroup};

use super::{Engine, available};
use crate::device_class::DeviceClass;
use crate::error::Error;
use crate::marks;

/// A volume that a client wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateVolume {
    /// Its name.
    pub name: LvName,
    /// The device class; empty for the default class.
    pub device_class: String,
    /// The option class; empty for the settings of the device class.
    pub option_class: String,
    /// Size in bytes, a multiple of 512; it is rounded up to whole extents.
    pub bytes: u64,
    /// Tags to put on it.
    pub tags: Vec<Tag>,
}

impl<R: CommandRunner> Engine<R> {
    /// Creates a volume. That it exists already and is large enough is success: the answer to an earlier request was lost.
    pub async fn create(&self, wanted: CreateVolume) -> Result<LogicalVolume, Error> {
        let class = self.class(&wanted.device_class)?;
        let options = match wanted.option_class.as_str() {
            "" => None,
            name => match self.inner.classes.options(name) {
                Some(options) => Some(Arc::clone(options)),
                None => return Err(Error::UnknownOptionClass(name.to_owned())),
            },
        };
        let turn = self.lock(&class.volume_group).await?;
        let engine = self.clone();
        self.finish(async move {
            let created = engine.create_in_turn(&class, &wanted, options.as_deref()).await;
            drop(turn);
            created
        })
        .await
    }

    async fn create_in_turn(
        &self,
        class: &DeviceClass,
        wanted: &CreateVolume,
        options: Option<&[String]>,
    ) -> Result<LogicalVolume, Error> {
        let vg = &class.volume_group;
        // An option class takes the place of all that the device class says.
        let (striping, options) = match options {
            Some(options) => (None, options),
            None => (class.striping.as_ref(), class.lvcreate_options.as_slice()),
        };
        let mut group = self.group(vg).await?;
        let stripes = striping.map_or(1, |striping| striping.stripes.get());
        let size = rounded(&group, wanted.bytes, stripes.into());
        if let Some(existing) = group.volume(wanted.name.as_str()) {
            // What an interrupted lvcreate left may hold another tenant's data.
            if !(class.owns(existing) && marks::is_half_made(existing)) {
                return match difference(class, existing, size) {
                    None => Ok(existing.clone()),
                    Some(difference) => {
                        Err(Error::AlreadyExists { vg: vg.clone(), name: wanted.name.clone(), difference })
                    }
                };
            }
            self.remove_half_made(&group, &wanted.name).await?;
            group = self.group(vg).await?;
        }
        let free = available(class, &group)?;
        let Some(bytes) = size.filter(|size| *size <= free) else {
            return Err(Error::NoSpace { free, requested: wanted.bytes });
        };
        let pool = class.thin_pool.as_ref().map(|pool| &pool.name);
        let tags = marks::begin(&wanted.tags, None)?;
        let volume = NewVolume { vg, pool, name: &wanted.name, bytes, tags: &tags, striping, options };
        self.judged(self.inner.lvm.create(&volume).await)?;
        self.make_ready(vg, &wanted.name, Ok(())).await
    }

    /// Makes a volume at least `bytes` large and returns it. It never gets smaller: what is large enough stays as it is.
    pub async fn resize(&self, class: &str, name: LvName, bytes: u64) -> Result<LogicalVolume, Error> {
        let class = self.class(class)?;
        let turn = self.lock(&class.volume_group).await?;
        let engine = self.clone();
        self.finish(async move {
            let resized = engine.resize_in_turn(&class, &name, bytes).await;
            drop(turn);
            resized
        })
        .await
    }

    async fn resize_in_turn(&self, class: &DeviceClass, name: &LvName, bytes: u64) -> Result<LogicalVolume, Error> {
        let vg = &class.volume_group;
        let group = self.group(vg).await?;
        let volume = existing(class, &group, name)?;
        if marks::is_half_made(volume) {
            let why = "is half made; create it again".to_owned();
            return Err(Error::NotAllowed { vg: vg.clone(), name: name.clone(), why });
        }
        let current = volume.visible_size();
        if bytes <= current {
            return Ok(volume.clone());
        }
        if !volume.attr.is_thin() && volume.origin.is_some() {
            let why = "is a copy-on-write snapshot and cannot be resized".to_owned();
            return Err(Error::NotAllowed { vg: vg.clone(), name: name.clone(), why });
        }
        let free = available(class, &group)?;
        // Extents of a volume are whole, so what is larger than it now is at least one extent larger.
        let bytes = match rounded(&group, bytes, 1) {
            Some(rounded) if rounded.saturating_sub(current) <= free => rounded,
            _ => return Err(Error::NoSpace { free, requested: bytes.saturating_sub(current) }),
        };
        self.judged(self.inner.lvm.resize(vg, name, bytes).await)?;
        self.changed();
        self.find(class, name).await
    }

    /// Removes a volume. [`Error::VolumeNotFound`] means that LVM listed the volume group and the volume is not in it.
    pub async fn remove(&self, class: &str, name: LvName) -> Result<(), Error> {
        let class = self.class(class)?;
        let turn = self.lock(&class.volume_group).await?;
        let engine = self.clone();
        self.finish(async move {
            let removed = engine.remove_in_turn(&class, &name).await;
            drop(turn);
            removed
        })
        .await
    }

    async fn remove_in_turn(&self, class: &DeviceClass, name: &LvName) -> Result<(), Error> {
        let vg = &class.volume_group;
        let group = self.group(vg).await?;
        existing(class, &group, name)?;
        // lvremove --force takes them along without a word.
        let snapshots: Vec<_> = group.snapshots_of(name.as_str()).collect();
        if !snapshots.is_empty() {
            let why = format!("has snapshots that would be lost: {}; remove them first", snapshots.join(", "));
            return Err(Error::NotAllowed { vg: vg.clone(), name: name.clone(), why });
        }
        self.judged(self.inner.lvm.remove(vg, name).await)?;
        self.changed();
        Ok(())
    }

    async fn find(&self, class: &DeviceClass, name: &LvName) -> Result<LogicalVolume, Error> {
        let group = self.group(&class.volume_group).await?;
        let vanished = || Error::Vanished { vg: class.volume_group.clone(), name: name.clone() };
        group.volume(name.as_str()).cloned().ok_or_else(vanished)
    }
}

/// The size that LVM makes of `bytes`: whole extents, the same number on every stripe.
pub(super) fn rounded(group: &VolumeGroup, bytes: u64, stripes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(group.extent_size.checked_mul(stripes)?)
}

/// Why an existing volume cannot be the wanted one of this size.
fn difference(class: &DeviceClass, existing: &LogicalVolume, wanted: Option<u64>) -> Option<String> {
    if !class.owns(existing) {
        return Some(elsewhere(class));
    }
    if marks::is_thin_snapshot(existing) {
        return Some("is a snapshot".to_owned());
    }
    match wanted {
        Some(wanted) if existing.visible_size() >= wanted => None,
        _ => Some(format!("has only {} bytes", existing.visible_size())),
    }
}

/// The volume, if it is one that the class may touch. A volume of this name in another pool, or in none, is somebody
/// else's: neither may it be changed nor may anybody conclude that it is gone.
pub(super) fn existing<'a>(
    class: &DeviceClass,
    group: &'a VolumeGroup,
    name: &LvName,
) -> Result<&'a LogicalVolume, Error> {
    let not_found = || Error::VolumeNotFound { vg: group.name.clone(), name: name.clone() };
    let not_allowed = |why| Error::NotAllowed { vg: group.name.clone(), name: name.clone(), why };
    let volume = group.volume(name.as_str()).ok_or_else(not_found)?;
    // Volumes that hold other volumes are the administrator's: removing a pool removes everything in it.
    if volume.attr.holds_volumes() {
        return Err(not_allowed("holds other volumes and is not touched".to_owned()));
    }
    if !class.owns(volume) {
        return Err(not_allowed(elsewhere(class)));
    }
    Ok(volume)
}

fn elsewhere(class: &DeviceClass) -> String {
    match &class.thin_pool {
        Some(pool) => format!("is not in thin pool {}, where device class {} keeps its volumes", pool.name, class.name),
        None => format!("is in a thin pool, where device class {} keeps no volumes", class.name),
    }
}
