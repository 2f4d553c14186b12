//! The capacity of each device class.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use lvm::{Layout, LogicalVolume, LvAttr, VolumeGroup};

use crate::device_class::{DeviceClass, DeviceClasses, ThinPool};
use crate::tags;

/// The capacity of all device classes at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Capacity {
    /// One entry for each class, in the order of the configuration.
    pub classes: Vec<ClassCapacity>,
}

/// The capacity of one device class.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassCapacity {
    /// Name of the class.
    pub name: String,
    /// True if it is the default class.
    pub default: bool,
    /// Free bytes, after the spare. 0 while the volume group, one of its physical volumes or the thin
    /// pool is missing, and while LVM creates no volumes.
    pub free_bytes: u64,
    /// The reason why LVM creates no volumes, whatever is free.
    pub refusal: Option<String>,
    /// Bytes that are free in the volume group, less the spare of a thick class: more than can be made of them where
    /// volumes are striped or RAID. 0 like `free_bytes`.
    pub group_free_bytes: u64,
    /// Bytes of a thick class's spare that others took. 0 like `free_bytes`.
    pub used_spare: u64,
    /// Size of the volume group in bytes. 0 while it is missing.
    pub size: u64,
    /// Number of volumes, also of those that lvmd did not create, but not of those that are being wiped.
    pub volumes: u64,
    /// A hash of the volumes and their names, so that watchers hear of every volume that comes, goes or is renamed,
    /// also where that takes no space.
    pub names_hash: u64,
    /// The thin pool of a thin class.
    pub thin: Option<ThinPoolUsage>,
    /// The option classes that give volumes another layout than the class does, and then first the class itself.
    pub layouts: Vec<LayoutCapacity>,
}

/// The capacity of a device class for volumes of one layout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayoutCapacity {
    /// Name of the option class; empty for the options of the device class.
    pub option_class: String,
    /// Free bytes, after the spare.
    pub free_bytes: u64,
    /// Stripes of the layout.
    pub stripes: u64,
    /// Images of the layout, with copies and parity.
    pub images: u64,
}

/// The fill of a thin pool. All 0 while the pool is missing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ThinPoolUsage {
    /// Size of the pool in bytes.
    pub size: u64,
    /// Fill of its data in percent.
    pub data_percent: f64,
    /// Fill of its metadata in percent.
    pub metadata_percent: f64,
    /// Its `lv_attr`; `None` while the pool is missing.
    pub attr: Option<LvAttr>,
}

/// Creations that LVM refuses in a class.
#[derive(Debug)]
pub struct RefusedCreations<F> {
    /// The reason why LVM creates no volumes in it, whatever is free.
    pub refusal: Option<String>,
    /// Returns true if no capacity is published for an option class, or for the class itself under the empty name.
    pub withholds: F,
}

impl ClassCapacity {
    /// Returns the capacity of a class from the report on its volume group; `None` for a missing group.
    pub fn of<F: Fn(&str) -> bool>(
        class: &DeviceClass,
        classes: &DeviceClasses,
        group: Option<&VolumeGroup>,
        refused: RefusedCreations<F>,
    ) -> Self {
        let RefusedCreations { refusal, withholds } = refused;
        let is_withheld = |option_class: &str| refusal.is_some() || withholds(option_class);
        let free_bytes = |group: &VolumeGroup| {
            class.free_bytes(group).unwrap_or_else(|pool| {
                tracing::error!(
                    class = class.name, vg = %group.name, pool = %pool.name,
                    "thin pool not found; its capacity is 0"
                );
                0
            })
        };
        let is_listed = |volume: &&LogicalVolume| class.owns(volume) && !tags::is_wiping(volume);
        let free_bytes = group.map_or(0, free_bytes);
        let free_bytes = if is_withheld("") { 0 } else { free_bytes };
        Self {
            name: class.name.clone(),
            default: class.default,
            free_bytes,
            layouts: compute_layouts(class, classes, group, free_bytes, is_withheld),
            refusal: refusal.clone(),
            group_free_bytes: group.map_or(0, |group| class.group_free_bytes(group)),
            used_spare: group.map_or(0, |group| class.used_spare(group)),
            size: group.map_or(0, |group| group.size),
            volumes: group.map_or(0, |group| count(group.volumes.iter().filter(is_listed))),
            names_hash: group.map_or(0, |group| hash_names(group.volumes.iter().filter(is_listed))),
            thin: class.thin_pool.as_ref().map(|pool| ThinPoolUsage::of(pool, group)),
        }
    }
}

/// Returns the capacity for volumes of the device class first, then of each option class that has another layout or
/// that LVM refuses. Thin volumes have no layout.
fn compute_layouts(
    class: &DeviceClass,
    classes: &DeviceClasses,
    group: Option<&VolumeGroup>,
    free_bytes: u64,
    is_withheld: impl Fn(&str) -> bool,
) -> Vec<LayoutCapacity> {
    let capacity = |option_class: &str, layout: &Layout, free_bytes| LayoutCapacity {
        option_class: option_class.to_owned(),
        free_bytes,
        stripes: layout.stripes(),
        images: layout.images(),
    };
    let differs =
        |(name, layout): &(&str, &Layout)| class.thin_pool.is_none() && (**layout != class.layout || is_withheld(name));
    let mut options = classes.option_layouts().filter(differs).peekable();
    let own = options.peek().map(|_| capacity("", &class.layout, free_bytes));
    let of_group = |layout, group| class.free_space(layout, group).map_or(0, |space| space.bytes);
    let options = options.map(|(name, layout)| {
        let group = group.filter(|_| !is_withheld(name));
        capacity(name, layout, group.map_or(0, |group| of_group(layout, group)))
    });
    own.into_iter().chain(options).collect()
}

/// Hashes UUIDs and names in LVM's order, which is that of the names.
fn hash_names<'a>(volumes: impl Iterator<Item = &'a LogicalVolume>) -> u64 {
    let mut hasher = DefaultHasher::new();
    volumes.for_each(|volume| (&volume.uuid, &volume.name).hash(&mut hasher));
    hasher.finish()
}

fn count(items: impl Iterator) -> u64 {
    u64::try_from(items.count()).unwrap_or(u64::MAX)
}

impl ThinPoolUsage {
    fn of(pool: &ThinPool, group: Option<&VolumeGroup>) -> Self {
        let Some(pool) = group.and_then(|group| pool.find(group)) else {
            return Self::default();
        };
        Self {
            size: pool.size,
            // LVM reports no fill of an inactive pool.
            data_percent: pool.data_percent.unwrap_or(0.0),
            metadata_percent: pool.metadata_percent.unwrap_or(0.0),
            attr: Some(pool.attr),
        }
    }
}

impl Capacity {
    /// Returns the default class, if there is one.
    pub fn default_class(&self) -> Option<&ClassCapacity> {
        self.classes.iter().find(|class| class.default)
    }
}
