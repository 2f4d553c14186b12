//! A volume to create.

use std::sync::Arc;

use lvm::{Layout, LvName, NewVolume, Striping, Tag, VgName, VolumeGroup};
use lvmd_config::{DeviceClass, DeviceClasses, OptionClass, tags};

use super::preconditions::{check_creates_volumes, check_pool_accepts_volumes, round_up_to_extents, thin_pool_missing};
use super::refusals::CreationOptions;
use crate::error::Error;

/// Bytes of a volume that shows whether LVM creates any: no layout needs more.
pub(super) const PROBE_BYTES: u64 = 16 << 20;

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
    /// Tags to add to it.
    pub tags: Vec<Tag>,
}

/// A volume to create, with the settings of its class at the time of the request.
#[derive(Debug)]
pub(super) struct Creation {
    pub(super) wanted: CreateVolume,
    pub(super) class: Arc<DeviceClass>,
    /// Its option class.
    pub(super) option_class: Option<Arc<OptionClass>>,
}

impl Creation {
    /// Returns the creation with the settings that its classes have now.
    pub(super) fn new(classes: &DeviceClasses, wanted: CreateVolume) -> Result<Self, Error> {
        let unknown = || Error::UnknownDeviceClass(wanted.device_class.clone());
        let class = Arc::clone(classes.get(&wanted.device_class).ok_or_else(unknown)?);
        let option_class = match wanted.option_class.as_str() {
            "" => None,
            name => match classes.option_class(name) {
                Some(class) => Some(Arc::clone(class)),
                None => return Err(Error::UnknownOptionClass(name.to_owned())),
            },
        };
        Ok(Self { wanted, class, option_class })
    }

    /// Returns the creation of a small volume with these options in a group; `None` if the configuration does not have
    /// them any more.
    pub(super) fn of_probe(classes: &DeviceClasses, vg: &VgName, options: &CreationOptions) -> Option<Self> {
        let wanted = CreateVolume {
            name: tags::probe_name().ok()?,
            device_class: options.class.clone(),
            option_class: options.option_class.clone(),
            bytes: PROBE_BYTES,
            tags: Vec::new(),
        };
        Self::new(classes, wanted).ok().filter(|creation| creation.class.volume_group == *vg)
    }

    /// Returns a size in bytes after rounding. Fails if LVM cannot create a volume of that size in the class.
    pub(super) fn check_space(&self, group: &VolumeGroup, bytes: u64) -> Result<u64, Error> {
        let (class, layout) = (&self.class, self.layout());
        check_creates_volumes(class, group)?;
        check_pool_accepts_volumes(class, group)?;
        let space = class.free_space(layout, group).map_err(|pool| thin_pool_missing(pool, group))?;
        let size = round_up_to_extents(group, bytes, layout.step()).filter(|size| space.fits(layout, *size));
        size.ok_or(Error::NoSpace { free: space.bytes, requested: bytes })
    }

    /// Returns the `lvcreate` options of its option class, else of its device class.
    pub(super) fn options(&self) -> &[String] {
        self.option_class.as_ref().map_or(&self.class.lvcreate_options, |class| &class.options)
    }

    /// Returns the stripes of the device class, unless an option class takes their place.
    pub(super) fn striping(&self) -> Option<&Striping> {
        self.class.striping.as_ref().filter(|_| self.option_class.is_none())
    }

    /// Returns the names of the classes that its options come from.
    pub(super) fn option_names(&self) -> CreationOptions {
        CreationOptions { class: self.class.name.clone(), option_class: self.wanted.option_class.clone() }
    }

    /// Returns a volume for LVM to create with these options, as the classes specify.
    pub(super) fn new_volume<'a>(
        &'a self,
        vg: &'a VgName,
        name: &'a LvName,
        bytes: u64,
        tags: &'a [Tag],
        options: &'a [String],
    ) -> NewVolume<'a> {
        let pool = self.class.thin_pool.as_ref().map(|pool| &pool.name);
        NewVolume { vg, pool, name, bytes, tags, striping: self.striping(), options }
    }

    /// Returns the layout that stripes and options give the volume.
    pub(super) fn layout(&self) -> &Layout {
        self.option_class.as_ref().map_or(&self.class.layout, |class| &class.layout)
    }

    /// Returns whether the volume is thick and linear, without any options: several of these take as much space as
    /// one that is as large as all of them.
    pub(super) fn is_plain(&self) -> bool {
        self.class.thin_pool.is_none() && self.options().is_empty() && self.striping().is_none()
    }
}
