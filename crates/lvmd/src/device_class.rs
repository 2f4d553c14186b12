//! Device classes: the names under which clients ask for storage, and what stands behind each.

use std::collections::BTreeMap;
use std::sync::Arc;

use lvm::{FreeAreas, Layout, LogicalVolume, LvName, Problem, Striping, VgName, VolumeGroup, Wipe};

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

impl<'a> Room<'a> {
    /// What a volume may grow by where no class has its volumes any more: what is free in the group, or, in a thin pool, what is
    /// physically free in it, because nobody says how much more the pool may promise.
    pub fn without_class(volume: &LogicalVolume, group: &'a VolumeGroup) -> Self {
        if group.missing_pvs > 0 {
            return Self { free: 0, areas: None };
        }
        match &volume.pool {
            None => {
                let areas = group.free_areas();
                Self { free: areas.largest(&volume.layout(), 0), areas: Some(areas) }
            }
            Some(pool) => Self { free: group.volume(pool).map_or(0, physically_free), areas: None },
        }
    }

    /// Whether a volume of so many bytes can be made. LVM's allocator is greedy: now and then it cannot make a size although it
    /// can make a larger one.
    pub fn fits(&self, layout: &Layout, bytes: u64) -> bool {
        bytes <= self.free && self.areas.as_ref().is_none_or(|areas| areas.fits(layout, bytes))
    }
}

/// Bytes of a thin pool that nothing was written to.
#[expect(
    clippy::as_conversions,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "LVM tells the fill in percent only"
)]
fn physically_free(pool: &LogicalVolume) -> u64 {
    let used = pool.data_percent.unwrap_or(100.0).clamp(0.0, 100.0);
    (pool.size as f64 * (100.0 - used) / 100.0) as u64
}

/// Where the volumes of a thin class live.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThinPool {
    /// Its name in the volume group.
    pub name: LvName,
    /// How much it promises.
    pub overprovision: Overprovision,
    /// Above so many percent of its data or metadata LVM makes no volumes in it (lvm.conf(5)
    /// `activation/thin_pool_autoextend_threshold`).
    pub threshold: u32,
}

/// Why LVM makes no volumes in a thin pool, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PoolRefusal {
    /// Room helps.
    Full(String),
    /// Only a repair helps.
    Broken(String),
}

/// LVM's own threshold: a pool takes volumes until it is full.
pub(crate) const DEFAULT_THRESHOLD: u32 = 100;
/// LVM makes no thin volume unless so much metadata is free, in bytes, or a quarter of it if that is less
/// (LVM2, `thin_pool_metadata_min_threshold`).
const FREE_METADATA: u64 = 4 << 20;

impl ThinPool {
    /// The pool, if it is in the group and is one.
    pub fn find<'a>(&self, group: &'a VolumeGroup) -> Option<&'a LogicalVolume> {
        group.volume(self.name.as_str()).filter(|volume| volume.attr.is_thin_pool())
    }

    /// Why LVM makes no volumes in this pool now; `None` while it does. The same conditions as in LVM2,
    /// `thin_pool_below_threshold`. What is known of the fill is at most some seconds old.
    pub(crate) fn refusal(&self, pool: &LogicalVolume) -> Option<PoolRefusal> {
        match pool.attr.problem() {
            Some(problem @ (Problem::ThinPoolFailed | Problem::CheckNeeded)) => {
                return Some(PoolRefusal::Broken(problem.to_string()));
            }
            // The kernel does this when the metadata is full.
            Some(problem @ (Problem::ThinPoolOutOfDataSpace | Problem::ThinPoolMetadataReadOnly)) => {
                return Some(PoolRefusal::Full(problem.to_string()));
            }
            Some(_) | None => {}
        }
        let threshold = f64::from(self.threshold.min(DEFAULT_THRESHOLD));
        let most_metadata = 100.0 - pool.metadata_size.map_or(25.0, free_metadata_percent);
        let (data, metadata) = (pool.data_percent.unwrap_or(0.0), pool.metadata_percent.unwrap_or(0.0));
        if data >= 100.0 || data > threshold {
            Some(PoolRefusal::Full(format!(
                "{data} % of its data are used, and LVM makes no volumes above {threshold} %"
            )))
        } else if metadata > threshold || metadata >= most_metadata {
            let most = threshold.min(most_metadata);
            Some(PoolRefusal::Full(format!(
                "{metadata} % of its metadata are used, and LVM makes no volumes above {most:.2} %"
            )))
        } else {
            None
        }
    }
}

#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "a percentage needs no more precision")]
fn free_metadata_percent(size: u64) -> f64 {
    (FREE_METADATA as f64 * 100.0 / size.max(1) as f64).min(25.0)
}

impl DeviceClass {
    /// Bytes that may still be given away, without the spare: the largest volume that fits into the group and leaves the spare, or
    /// what the thin pool promises less what was promised by it, snapshots in full. Nothing while physical volumes of the group are missing,
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
                (areas.largest(layout, self.spare), Some(areas))
            }
            Some(pool) => {
                let found = pool.find(group).ok_or(pool)?;
                let promised = group.volumes.iter().filter(|volume| self.owns(volume)).map(|volume| volume.size);
                let promised = promised.fold(0, u64::saturating_add);
                let free = pool.overprovision.of(found.size).saturating_sub(promised);
                // A promise that LVM would not take is none.
                (if pool.refusal(found).is_some() { 0 } else { free.saturating_sub(self.spare) }, None)
            }
        };
        let free = if group.missing_pvs > 0 { 0 } else { free };
        Ok(Room { free, areas })
    }

    /// Bytes that are free in the group, less the spare of a thick class, whatever can be made of them. Nothing while physical
    /// volumes are missing.
    pub fn group_free(&self, group: &VolumeGroup) -> u64 {
        match &self.thin_pool {
            _ if group.missing_pvs > 0 => 0,
            Some(_) => group.free,
            None => group.free.saturating_sub(self.spare),
        }
    }

    /// The thin pool, and why LVM makes no volumes in it now.
    pub(crate) fn full_pool(&self, group: &VolumeGroup) -> Option<(&ThinPool, PoolRefusal)> {
        let pool = self.thin_pool.as_ref()?;
        Some((pool, pool.refusal(pool.find(group)?)?))
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

    /// Sets above how many percent LVM makes no volumes in thin pools.
    pub(crate) fn set_thin_pool_threshold(&mut self, threshold: u32) {
        for class in &mut self.classes {
            if class.thin_pool.is_some()
                && let Some(pool) = &mut Arc::make_mut(class).thin_pool
            {
                pool.threshold = threshold;
            }
        }
    }

    /// The volume groups behind the classes, each once.
    pub fn volume_groups(&self) -> Vec<VgName> {
        let mut groups: Vec<_> = self.classes.iter().map(|class| class.volume_group.clone()).collect();
        groups.sort();
        groups.dedup();
        groups
    }
}
