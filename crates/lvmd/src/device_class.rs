//! Device classes: the names under which clients ask for storage, and what stands behind each.

use std::collections::BTreeMap;
use std::sync::Arc;

use lvm::{FreeAreas, Layout, LogicalVolume, LvName, Striping, VgName, VolumeGroup, Wipe};

use crate::overprovision::Overprovision;

/// One device class: a volume group, or a thin pool in it, and how volumes are made there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceClass {
    /// Its name, as StorageClasses write it.
    pub name: String,
    /// Where its volumes live.
    pub volume_group: VgName,
    /// The thin pool of a thin class; `None` for a thick one.
    pub thin_pool: Option<ThinPool>,
    /// Whether requests that name no class mean this one.
    pub default: bool,
    /// Bytes that are never given away: of the volume group, or of what the thin pool promises.
    pub spare: u64,
    /// How its volumes are striped. Thin volumes are not: their pool is, or is not.
    pub striping: Option<Striping>,
    /// More options for `lvcreate`, word by word.
    pub lvcreate_options: Vec<String>,
    /// What these and the stripes mean for the room that a volume needs.
    pub layout: Layout,
    /// What happens to the contents of a volume before its room is given to others; `None` for nothing.
    pub wipe: Option<Wipe>,
}

/// What may still be given away in a class.
#[derive(Debug)]
pub struct Room<'a> {
    /// In bytes, without the spare. The size of the largest volume.
    pub free: u64,
    /// Where a thick volume can lie.
    areas: Option<FreeAreas<'a>>,
}

impl Room<'_> {
    /// Whether a volume of so many bytes can be made. LVM's allocator is greedy: now and then it cannot make a size although it
    /// can make a larger one.
    pub fn fits(&self, layout: &Layout, bytes: u64) -> bool {
        bytes <= self.free && self.areas.as_ref().is_none_or(|areas| areas.fits(layout, bytes))
    }
}

/// Where the volumes of a thin class live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThinPool {
    /// Its name in the volume group.
    pub name: LvName,
    /// How much it promises.
    pub overprovision: Overprovision,
}

impl ThinPool {
    /// The pool, if it is in the group and is one.
    pub fn find<'a>(&self, group: &'a VolumeGroup) -> Option<&'a LogicalVolume> {
        group.volume(self.name.as_str()).filter(|volume| volume.attr.is_thin_pool())
    }
}

impl DeviceClass {
    /// Bytes that may still be given away, without the spare: the largest volume that fits into the group, or what the thin pool
    /// promises less what was promised by it, snapshots in full. Nothing while physical volumes of the group are missing,
    /// because LVM makes nothing then. The error is a pool that the group has not.
    ///
    /// Everybody who asks for free space asks here.
    pub fn available(&self, group: &VolumeGroup) -> Result<u64, &ThinPool> {
        Ok(self.room(&self.layout, group)?.free)
    }

    /// The same for volumes of any layout.
    pub fn room<'a>(&self, layout: &Layout, group: &'a VolumeGroup) -> Result<Room<'a>, &ThinPool> {
        let (free, areas) = match &self.thin_pool {
            None => {
                let areas = group.free_areas();
                (areas.largest(layout), Some(areas))
            }
            Some(pool) => {
                let promised = group.volumes.iter().filter(|volume| self.owns(volume)).map(|volume| volume.size);
                let promised = promised.fold(0, u64::saturating_add);
                (pool.overprovision.of(pool.find(group).ok_or(pool)?.size).saturating_sub(promised), None)
            }
        };
        let free = if group.missing_pvs > 0 { 0 } else { free };
        Ok(Room { free: free.saturating_sub(self.spare), areas })
    }

    /// The thin pool of a class whose volumes are to be wiped, if it does not do that: a pool that zeroes the blocks that it
    /// gives out shows nobody another one's data, and there is nothing to do when a volume goes.
    pub fn leaking_pool(&self, group: &VolumeGroup) -> Option<&ThinPool> {
        let pool = self.thin_pool.as_ref().filter(|_| self.wipe == Some(Wipe::Zero))?;
        pool.find(group).is_some_and(|found| !found.attr.zeroes_new_blocks()).then_some(pool)
    }

    /// Whether a volume of the class's group is where the class keeps its volumes: in its thin pool, or in no thin pool.
    pub fn owns(&self, volume: &LogicalVolume) -> bool {
        match &self.thin_pool {
            None => !volume.attr.is_thin() && !volume.attr.is_thin_pool(),
            Some(pool) => volume.attr.is_thin() && volume.pool.as_deref() == Some(pool.name.as_str()),
        }
    }
}

/// All device classes and option classes of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceClasses {
    classes: Vec<Arc<DeviceClass>>,
    options: BTreeMap<String, Arc<[String]>>,
}

impl DeviceClasses {
    pub(crate) fn new(classes: Vec<DeviceClass>, options: BTreeMap<String, Vec<String>>) -> Self {
        Self {
            classes: classes.into_iter().map(Arc::new).collect(),
            options: options.into_iter().map(|(name, options)| (name, options.into())).collect(),
        }
    }

    /// The class of this name; the default class, if there is one, for the empty name.
    pub fn get(&self, name: &str) -> Option<&Arc<DeviceClass>> {
        self.classes.iter().find(|class| if name.is_empty() { class.default } else { class.name == name })
    }

    /// The `lvcreate` options of an option class. They take the place of everything that the device class says about how
    /// volumes are made.
    pub fn options(&self, name: &str) -> Option<&Arc<[String]>> {
        self.options.get(name)
    }

    /// All classes in the order of the configuration.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<DeviceClass>> {
        self.classes.iter()
    }

    /// The volume groups behind the classes, each once.
    pub fn volume_groups(&self) -> Vec<VgName> {
        let mut groups: Vec<_> = self.classes.iter().map(|class| class.volume_group.clone()).collect();
        groups.sort();
        groups.dedup();
        groups
    }
}
