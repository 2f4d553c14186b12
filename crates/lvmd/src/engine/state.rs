//! The state that all operations of the engine share: device classes, cached volume groups, and what watchers are told.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use lvm::{Device, Host, LogicalVolume, Lvm, VgName};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{mpsc, watch};
use topolvm_runtime::{CancellationToken, Tasks};

use super::group::{Failure, Group};
use super::refusals::CreationOptions;
use super::storage_health::{self, class_refusal};
use crate::capacity::{Capacity, ClassCapacity, Refused};
use crate::device_class::{DeviceClass, DeviceClasses};
use crate::disk_addition::DiskAddition;
use crate::disk_group::NodeLabels;
use crate::disk_report::DiskReport;
use crate::error::Error;
use crate::inventory::Inventory;
use crate::tags::InstanceId;
use crate::watch_stream;

/// The state of the cache of one volume group, for metrics.
pub(crate) struct GroupStatus {
    pub(crate) name: VgName,
    /// Time since LVM last reported on the group.
    pub(crate) age: Duration,
    /// True if LVM failed when it was last asked about the group.
    pub(crate) is_stale: bool,
    /// Number of missing physical volumes in the last report.
    pub(crate) missing_pvs: u64,
    /// Number of thin pools of device classes that ignore discards.
    pub(crate) pools_ignoring_discards: u64,
}

/// Device classes on top of LVM. Clones share everything.
#[derive(Debug)]
pub struct Engine<R> {
    pub(super) inner: Arc<Inner<R>>,
}

#[derive(Debug)]
pub(super) struct Inner<R> {
    pub(super) lvm: Lvm<R>,
    pub(super) classes: RwLock<Arc<DeviceClasses>>,
    pub(super) groups: RwLock<BTreeMap<VgName, Arc<Group>>>,
    pub(super) instance: InstanceId,
    pub(super) tasks: Tasks,
    pub(super) shutdown: CancellationToken,
    pub(super) capacity: watch::Sender<Arc<Capacity>>,
    pub(super) lvm_works: watch::Sender<bool>,
    pub(super) storage_problems: watch::Sender<Vec<String>>,
    pub(super) inventory: watch::Sender<Arc<Inventory>>,
    /// The last look at the disks; `None` before the first.
    pub(super) disks: RwLock<Option<Arc<DiskReport>>>,
    /// The labels of the node; `None` until a client has told them.
    pub(super) node_labels: watch::Sender<Option<Arc<NodeLabels>>>,
    /// Sends the disks that clients want to be added to their disk groups.
    pub(super) disk_additions: mpsc::Sender<DiskAddition>,
    /// Their other end, until the discovery of disks has it.
    pub(super) wanted_disks: Mutex<Option<mpsc::Receiver<DiskAddition>>>,
}

impl<R> Clone for Engine<R> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<R: Host> Engine<R> {
    /// Returns the capacity of all device classes. A missing volume group has none; an optional class without its group
    /// is left out.
    pub fn capacity(&self) -> Capacity {
        let (groups, classes) = (self.groups(), self.classes());
        let capacity_of = |class: &Arc<DeviceClass>| {
            let group = groups.get(&class.volume_group);
            let known = group.and_then(|group| group.usable());
            let is_offered = known.as_ref().is_some_and(|known| class.is_there(known)) || !class.optional;
            let options = |option_class: &str| CreationOptions {
                class: class.name.clone(),
                option_class: option_class.to_owned(),
            };
            let refused = Refused {
                refusal: group.and_then(|group| class_refusal(class, group)),
                withholds: |option_class: &str| {
                    group.is_some_and(|group| group.refusals.withholds(&options(option_class)))
                },
            };
            is_offered.then(|| ClassCapacity::of(class, &classes, known.as_deref(), refused))
        };
        Capacity { classes: classes.iter().filter_map(capacity_of).collect() }
    }

    /// Streams the capacity of all device classes: now, and after each change until the shutdown begins.
    pub fn watch_capacity(&self) -> impl Stream<Item = Result<Arc<Capacity>, Error>> + Send + use<R> {
        watch_stream::changes(&self.inner.capacity, self.inner.shutdown.clone())
    }

    /// Streams the inventory in the same way.
    pub fn watch_inventory(&self) -> impl Stream<Item = Result<Arc<Inventory>, Error>> + Send + use<R> {
        watch_stream::changes(&self.inner.inventory, self.inner.shutdown.clone())
    }

    /// Subscribes to the health of LVM: false while LVM fails for a volume group that a device class needs.
    pub fn lvm_works(&self) -> watch::Receiver<bool> {
        self.inner.lvm_works.subscribe()
    }

    /// Subscribes to the problems of the storage, one sentence each: missing disks, a hanging LVM, volumes that cannot
    /// be wiped.
    pub fn storage_problems(&self) -> watch::Receiver<Vec<String>> {
        self.inner.storage_problems.subscribe()
    }

    /// Returns the state of the cache of each volume group.
    pub(crate) fn group_status(&self) -> Vec<GroupStatus> {
        let (groups, classes) = (self.groups(), self.classes());
        let ignoring_discards = |group: &Arc<Group>| {
            let pools = classes.iter().filter(|class| class.volume_group == group.name);
            let pools = pools.filter_map(|class| class.thin_pool.as_ref());
            pools.map(|pool| u64::from(group.ignores_discards(pool.name.as_str()))).sum()
        };
        let status = |group: &Arc<Group>| GroupStatus {
            name: group.name.clone(),
            age: group.age(),
            is_stale: group.stale_reason().is_some(),
            missing_pvs: group.cached().map_or(0, |group| group.missing_pvs),
            pools_ignoring_discards: ignoring_discards(group),
        };
        groups.values().map(status).collect()
    }

    /// Returns the LVM that serves the volume groups of the engine.
    pub fn lvm(&self) -> Lvm<R> {
        self.inner.lvm.clone()
    }

    /// Returns the device class of a request; the empty name is the default class.
    pub(crate) fn class(&self, name: &str) -> Result<Arc<DeviceClass>, Error> {
        self.classes().get(name).cloned().ok_or_else(|| Error::UnknownDeviceClass(name.to_owned()))
    }

    /// Returns the configured class whose volumes lie where this volume lies.
    pub(super) fn class_that_owns(&self, vg: &VgName, volume: &LogicalVolume) -> Option<Arc<DeviceClass>> {
        self.classes().iter().find(|class| class.volume_group == *vg && class.owns(volume)).cloned()
    }

    /// Returns whether a configured class uses the volume group.
    pub(super) fn is_used(&self, group: &Group) -> bool {
        self.classes().uses(&group.name)
    }

    pub(super) fn classes(&self) -> Arc<DeviceClasses> {
        Arc::clone(&self.inner.classes.read())
    }

    pub(super) fn groups(&self) -> BTreeMap<VgName, Arc<Group>> {
        self.inner.groups.read().clone()
    }

    pub(super) fn group(&self, vg: &VgName) -> Result<Arc<Group>, Error> {
        self.inner.groups.read().get(vg).cloned().ok_or_else(|| Error::VolumeGroupMissing(vg.clone()))
    }

    /// Returns the devices of the group's volumes as device-mapper has them now. `None` when device-mapper cannot be
    /// asked: a cached device could be somebody else's data by now.
    pub(super) async fn mapped_devices(&self, group: &Group) -> Option<HashMap<String, Device>> {
        group.mapped_devices(&self.devices()).await.ok()
    }

    pub(super) fn devices(&self) -> Arc<R::Devices> {
        self.inner.lvm.runner().devices()
    }

    /// Publishes capacity, health and inventory from the cache to all watchers that they differ for.
    pub(super) fn publish(&self) {
        // Computed inside, so that of two that publish at the same time the second publishes what both have stored.
        self.inner.capacity.send_if_modified(|published| {
            let capacity = self.capacity();
            let differs = **published != capacity;
            *published = Arc::new(capacity);
            differs
        });
        self.inner.lvm_works.send_if_modified(|published| {
            // A slow LVM is not dead: whoever ends lvmd for it only makes it wait once more. And one group that cannot
            // be used says nothing of the others.
            let has_failed = |group: &Group| group.stale_reason().is_some() && group.failure() == Failure::Other;
            let fails = |group: &Group| has_failed(group) && self.is_used(group);
            let works = !self.groups().values().any(|group| fails(group));
            std::mem::replace(published, works) != works
        });
        self.inner.storage_problems.send_if_modified(|published| {
            let problems = storage_health::find_problems(&self.groups(), &self.classes());
            let differs = *published != problems;
            *published = problems;
            differs
        });
        self.inner.inventory.send_if_modified(|published| {
            let inventory = self.inventory();
            let differs = **published != inventory;
            *published = Arc::new(inventory);
            differs
        });
    }
}
