//! Device classes: the names under which clients ask for storage, and the volume group or thin pool behind each.

mod free_space;
mod leaving_disks;
mod overprovision;
mod pool_growth;
mod pool_plan;
mod pool_share;
mod pool_space;
mod thin_pool;

use std::collections::BTreeMap;
use std::sync::Arc;

use lvm::{Layout, LogicalVolume, Striping, VgName, VolumeGroup, Wipe};

pub use free_space::FreeSpace;
pub use overprovision::{InvalidRatio, OverprovisionRatio};
pub use pool_growth::PoolGrowth;
pub use pool_plan::{PoolPlan, PoolStep};
pub use pool_share::{NewSizes, PoolShare};
pub(crate) use pool_space::MAX_METADATA;
pub(crate) use thin_pool::DEFAULT_THRESHOLD;
pub use thin_pool::{PoolRefusal, ThinPool};

/// One device class: a volume group, or a thin pool in it, and how volumes are created there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceClass {
    /// Its name, as StorageClasses write it.
    pub name: String,
    /// The volume group of its volumes.
    pub volume_group: VgName,
    /// True if the volume group may be missing on the machine. lvmd offers the class while the group exists.
    pub optional: bool,
    /// The thin pool of a thin class; `None` for a thick one.
    pub thin_pool: Option<ThinPool>,
    /// True if requests that name no class mean this one.
    pub default: bool,
    /// Bytes that are never allocated: of the volume group, or of the virtual capacity of the thin pool.
    pub spare: u64,
    /// Stripes of its volumes. Thin volumes have none: their pool has, or has not.
    pub striping: Option<Striping>,
    /// More options for `lvcreate`, one argument per entry.
    pub lvcreate_options: Vec<String>,
    /// True if only a test with LVM shows whether it accepts these options, and for which volume sizes.
    pub has_unproven_options: bool,
    /// The layout that these options and the stripes give a volume.
    pub layout: Layout,
    /// The way in which removed volumes are wiped before their extents are given to others; `None` for not at all.
    pub wipe: Option<Wipe>,
}

impl DeviceClass {
    /// Returns the thin pool of the class and why LVM creates no volumes in it now; `None` while LVM does.
    pub fn refusing_pool(&self, group: &VolumeGroup) -> Option<(&ThinPool, PoolRefusal)> {
        let pool = self.thin_pool.as_ref()?;
        Some((pool, pool.refusal(pool.find(group)?)?))
    }

    /// Returns the thin pool of a class with `wipe: zero` if the pool does not zero new blocks. A pool that zeroes them
    /// never exposes the data of another volume, so lvmd does not need to wipe its volumes on removal.
    pub fn pool_without_zeroing(&self, group: &VolumeGroup) -> Option<&ThinPool> {
        let pool = self.thin_pool.as_ref().filter(|_| self.wipe == Some(Wipe::Zero))?;
        pool.find(group).is_some_and(|found| !found.attr.zeroes_new_blocks()).then_some(pool)
    }

    /// Returns whether a volume of the class's group lies where the class has its volumes: in its thin pool, or in no
    /// thin pool.
    pub fn owns(&self, volume: &LogicalVolume) -> bool {
        match &self.thin_pool {
            None => !volume.attr.is_thin() && !volume.attr.is_thin_pool(),
            Some(pool) => volume.attr.is_thin() && volume.pool.as_deref() == Some(pool.name.as_str()),
        }
    }
}

/// One lvcreate option class. Its options replace all settings of the device class for the creation of volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionClass {
    /// The options for `lvcreate`, one argument per entry.
    pub options: Vec<String>,
    /// The layout that they give a volume.
    pub layout: Layout,
}

/// All device classes and option classes of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceClasses {
    classes: Vec<Arc<DeviceClass>>,
    option_classes: BTreeMap<String, Arc<OptionClass>>,
}

impl DeviceClasses {
    pub(crate) fn new(classes: Vec<DeviceClass>, options: BTreeMap<String, Vec<String>>) -> Self {
        let option_class = |options: Vec<String>| {
            let layout = Layout::parse(&options, None);
            Arc::new(OptionClass { options, layout })
        };
        Self {
            classes: classes.into_iter().map(Arc::new).collect(),
            option_classes: options.into_iter().map(|(name, options)| (name, option_class(options))).collect(),
        }
    }

    /// Returns the class of this name; the default class, if there is one, for the empty name.
    pub fn get(&self, name: &str) -> Option<&Arc<DeviceClass>> {
        self.classes.iter().find(|class| if name.is_empty() { class.default } else { class.name == name })
    }

    /// Returns the option class of this name.
    pub fn option_class(&self, name: &str) -> Option<&Arc<OptionClass>> {
        self.option_classes.get(name)
    }

    /// Iterates over the names and layouts of the option classes, in the order of their names.
    pub(crate) fn option_layouts(&self) -> impl Iterator<Item = (&str, &Layout)> {
        self.option_classes.iter().map(|(name, class)| (name.as_str(), &class.layout))
    }

    /// Iterates over all classes in the order of the configuration.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<DeviceClass>> {
        self.classes.iter()
    }

    /// Returns the classes that are not the same in `before`.
    #[must_use]
    pub fn changed_since(&self, before: &Self) -> Self {
        let is_changed = |class: &&Arc<DeviceClass>| before.get(&class.name) != Some(class);
        Self { classes: self.classes.iter().filter(is_changed).cloned().collect(), ..Self::default() }
    }

    /// Returns whether a class has its volumes in this volume group.
    pub fn uses(&self, vg: &VgName) -> bool {
        self.classes.iter().any(|class| class.volume_group == *vg)
    }

    /// Returns whether a class that is not optional has its volumes in this volume group.
    pub fn requires(&self, vg: &VgName) -> bool {
        self.classes.iter().any(|class| class.volume_group == *vg && !class.optional)
    }

    /// Sets the percentage above which LVM creates no volumes in thin pools.
    pub fn set_thin_pool_threshold(&mut self, threshold: u32) {
        for class in &mut self.classes {
            if class.thin_pool.is_some()
                && let Some(pool) = &mut Arc::make_mut(class).thin_pool
            {
                pool.threshold = threshold;
            }
        }
    }

    /// Returns the volume groups of the classes, each once.
    pub fn volume_groups(&self) -> Vec<VgName> {
        let mut groups: Vec<_> = self.classes.iter().map(|class| class.volume_group.clone()).collect();
        groups.sort();
        groups.dedup();
        groups
    }
}
