//! Creates volumes. `lvcreate`'s arguments are put together in `lvm`'s `LvmCommand::create`.

use std::borrow::Cow;
use std::sync::Arc;

use lvm::{Host, Layout, LogicalVolume, LvName, NewVolume, Tag, VolumeGroup};

use super::group::Group;
use super::locate::not_in_place;
use super::preconditions::{
    check_no_missing_pvs, check_pool_accepts_volumes, check_pool_zeroes, round_up_to_extents, thin_pool_missing,
};
use super::state::Engine;
use super::unfinished::NameState;
use crate::device_class::DeviceClass;
use crate::error::Error;
use crate::tags;

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

impl<R: Host> Engine<R> {
    /// Creates a volume. Returns an existing volume of this name if it is large enough: the answer to an earlier
    /// request was lost.
    pub async fn create(&self, wanted: CreateVolume) -> Result<LogicalVolume, Error> {
        let class = self.class(&wanted.device_class)?;
        let options = match wanted.option_class.as_str() {
            "" => None,
            name => match self.classes().options(name) {
                Some(options) => Some(Arc::clone(options)),
                None => return Err(Error::UnknownOptionClass(name.to_owned())),
            },
        };
        let group = self.group(&class.volume_group)?;
        self.check_not_created_elsewhere(&group, &wanted.name)?;
        self.with_lock(group, async move |engine, group| {
            engine.create_in_group(&group, &class, &wanted, options.as_deref()).await
        })
        .await
    }

    async fn create_in_group(
        &self,
        group: &Group,
        class: &DeviceClass,
        wanted: &CreateVolume,
        options: Option<&[String]>,
    ) -> Result<LogicalVolume, Error> {
        // An option class takes the place of all lvcreate options of the device class.
        let (striping, options, layout) = match options {
            Some(options) => (None, options, Cow::Owned(Layout::parse(options, None))),
            None => (class.striping.as_ref(), class.lvcreate_options.as_slice(), Cow::Borrowed(&class.layout)),
        };
        let size = |known: &VolumeGroup| round_up_to_extents(known, wanted.bytes, layout.step());
        let mismatch = |known: &VolumeGroup, existing: &LogicalVolume| find_mismatch(class, existing, size(known));
        let known = match self.prepare_name(group, |volume| class.owns(volume), &wanted.name, mismatch).await? {
            NameState::Exists(existing) => return Ok(*existing),
            NameState::Free(known) => known,
        };
        let making = self.inner.instance.new_making_tag()?;
        let volume = NewVolume {
            vg: &group.name,
            pool: class.thin_pool.as_ref().map(|pool| &pool.name),
            name: &wanted.name,
            bytes: check_space(class, &layout, &known, wanted.bytes)?,
            tags: &tags::of_new_volume(&wanted.tags, &making, None, class.wipe.filter(|_| class.thin_pool.is_none()))?,
            striping,
            options,
        };
        let create = || self.inner.lvm.create(&volume, &making);
        let created = self.create_with_retry(group, volume.pool, &wanted.name, create).await?;
        match volume.pool {
            Some(pool) => self.check_thin_volume_is_empty(group, pool, &wanted.name, created).await,
            None => Ok(created),
        }
    }
}

/// Returns the size in bytes after rounding. Fails if LVM cannot create a volume of that size in the class.
fn check_space(class: &DeviceClass, layout: &Layout, group: &VolumeGroup, bytes: u64) -> Result<u64, Error> {
    check_no_missing_pvs(group)?;
    check_pool_zeroes(class, group)?;
    check_pool_accepts_volumes(class, group)?;
    let space = class.free_space(layout, group).map_err(|pool| thin_pool_missing(pool, group))?;
    let size = round_up_to_extents(group, bytes, layout.step()).filter(|size| space.fits(layout, *size));
    size.ok_or(Error::NoSpace { free: space.bytes, requested: bytes })
}

/// Says why an existing volume is not the wanted one, whose size after rounding is given in bytes.
fn find_mismatch(class: &DeviceClass, existing: &LogicalVolume, wanted: Option<u64>) -> Option<String> {
    if !class.owns(existing) {
        return Some(not_in_place(class));
    }
    if tags::is_thin_snapshot(existing) {
        return Some("is a snapshot".to_owned());
    }
    match wanted {
        Some(wanted) if existing.visible_size() >= wanted => None,
        _ => Some(format!("has only {} bytes", existing.visible_size())),
    }
}
