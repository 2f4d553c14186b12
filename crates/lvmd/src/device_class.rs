//! Device classes: the names under which clients ask for storage, and what stands behind each.

use std::collections::BTreeMap;
use std::sync::Arc;

use lvm::{Striping, VgName, VolumeGroup};

/// One device class: a volume group and how volumes are made in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceClass {
    /// Its name, as StorageClasses write it.
    pub name: String,
    /// Where its volumes live.
    pub volume_group: VgName,
    /// Whether requests that name no class mean this one.
    pub default: bool,
    /// Bytes of the volume group that are never given away.
    pub spare: u64,
    /// How its volumes are striped.
    pub striping: Option<Striping>,
    /// More options for `lvcreate`, word by word.
    pub lvcreate_options: Vec<String>,
}

impl DeviceClass {
    /// Bytes that may still be given away: what is free, without the spare.
    pub fn available(&self, group: &VolumeGroup) -> u64 {
        group.free.saturating_sub(self.spare)
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
