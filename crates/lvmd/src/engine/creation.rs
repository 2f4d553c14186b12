//! A volume to create.

use std::sync::Arc;

use lvm::{Layout, LvName, NewVolume, Striping, Tag, VgName};

use super::refusals::CreationOptions;
use crate::device_class::{DeviceClass, OptionClass};

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

/// A volume to create, with the settings of its class when it was asked for.
#[derive(Debug)]
pub(super) struct Creation {
    pub(super) wanted: CreateVolume,
    pub(super) class: Arc<DeviceClass>,
    /// Its option class.
    pub(super) option_class: Option<Arc<OptionClass>>,
}

impl Creation {
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

    /// Returns a volume for LVM to create as the classes say, with these options.
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

    /// Returns whether the volume is thick and linear, without any options: several of these take as much room as one
    /// that is as large as all of them.
    pub(super) fn is_plain(&self) -> bool {
        self.class.thin_pool.is_none() && self.options().is_empty() && self.striping().is_none()
    }
}
