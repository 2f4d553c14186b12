//! The state that all operations share: LVM, device classes, volume groups, and what is published of them.
//!
//! The whole LVM is private to this module. A [`LockedGroup`] gives it to those who change a volume group, a
//! [`MoveLock`] gives the commands that a move of extents needs, and all others get the [`LvmReader`].

mod group_handle;
mod locked_group;
mod move_lock;
mod published;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use lvm::{Device, Host, Lvm, VgName};
use lvmd_config::tags::{self, InstanceId};
use lvmd_config::{Capacity, DeviceClass, DeviceClasses, DiskReport, NodeLabels};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{mpsc, watch};
use topolvm_runtime::{CancellationToken, Tasks};

use super::group::Group;
use crate::disk_addition::DiskAddition;
use crate::error::Error;
use crate::lvm_reader::LvmReader;
use crate::storage_report::StorageReport;

pub(super) use group_handle::GroupHandle;
pub(super) use locked_group::LockedGroup;
pub(super) use move_lock::MoveLock;

/// The state that all operations share.
#[derive(Debug)]
pub(super) struct Shared<R> {
    lvm: Lvm<R>,
    reader: LvmReader<R>,
    pub(super) classes: RwLock<Arc<DeviceClasses>>,
    pub(super) groups: RwLock<BTreeMap<VgName, Arc<Group>>>,
    pub(super) instance: InstanceId,
    pub(super) tasks: Tasks,
    pub(super) shutdown: CancellationToken,
    pub(super) capacity: watch::Sender<Arc<Capacity>>,
    pub(super) lvm_works: watch::Sender<bool>,
    pub(super) storage_problems: watch::Sender<Vec<String>>,
    pub(super) storage_report: watch::Sender<Arc<StorageReport>>,
    /// The last report on the disks; `None` before the first.
    pub(super) disks: RwLock<Option<Arc<DiskReport>>>,
    /// The labels of the node; `None` until a client has sent them.
    pub(super) node_labels: watch::Sender<Option<Arc<NodeLabels>>>,
    /// Sends the disks that clients want to be added to their disk groups.
    pub(super) disk_additions: mpsc::Sender<DiskAddition>,
    /// Their other end, until the discovery of disks has it.
    pub(super) wanted_disks: Mutex<Option<mpsc::Receiver<DiskAddition>>>,
}

impl<R: Host> Shared<R> {
    /// Returns the state before anything is configured.
    pub(super) fn new(lvm: Lvm<R>, instance: InstanceId, tasks: Tasks, shutdown: CancellationToken) -> Self {
        let (disk_additions, wanted_disks) = mpsc::channel(1);
        Self {
            reader: LvmReader::from(lvm.clone()),
            lvm,
            classes: RwLock::default(),
            groups: RwLock::default(),
            instance,
            tasks,
            shutdown,
            capacity: watch::Sender::default(),
            lvm_works: watch::Sender::new(true),
            storage_problems: watch::Sender::default(),
            storage_report: watch::Sender::default(),
            disks: RwLock::default(),
            node_labels: watch::Sender::default(),
            disk_additions,
            wanted_disks: Mutex::new(Some(wanted_disks)),
        }
    }

    /// Returns the commands of LVM that change nothing.
    pub(super) fn reader(&self) -> &LvmReader<R> {
        &self.reader
    }

    /// Returns the handle of a volume group, from which it can be locked.
    pub(super) fn handle(self: &Arc<Self>, group: Arc<Group>) -> GroupHandle<R> {
        GroupHandle::new(Arc::clone(self), group)
    }

    /// Returns the device class of a request; the empty name is the default class.
    pub(super) fn class(&self, name: &str) -> Result<Arc<DeviceClass>, Error> {
        self.classes().get(name).cloned().ok_or_else(|| Error::UnknownDeviceClass(name.to_owned()))
    }

    /// Returns whether a configured class uses the volume group.
    pub(super) fn is_used(&self, group: &Group) -> bool {
        self.classes().uses(&group.name)
    }

    /// Returns whether a class has its volumes in the group, or lvmd created some there. Those of a class that is no
    /// longer configured may still be used, or have to be wiped.
    pub(super) fn has_volumes(&self, group: &Group) -> bool {
        self.is_used(group) || group.cached().is_some_and(|known| known.volumes.iter().any(tags::is_managed))
    }

    pub(super) fn classes(&self) -> Arc<DeviceClasses> {
        Arc::clone(&self.classes.read())
    }

    pub(super) fn groups(&self) -> BTreeMap<VgName, Arc<Group>> {
        self.groups.read().clone()
    }

    pub(super) fn group(&self, vg: &VgName) -> Result<Arc<Group>, Error> {
        self.groups.read().get(vg).cloned().ok_or_else(|| Error::VolumeGroupMissing(vg.clone()))
    }

    /// Returns a device class and its volume group.
    pub(super) fn group_of_class(&self, class: &str) -> Result<(Arc<Group>, Arc<DeviceClass>), Error> {
        let class = self.class(class)?;
        Ok((self.group(&class.volume_group)?, class))
    }

    pub(super) fn devices(&self) -> Arc<R::Devices> {
        self.reader.devices()
    }

    /// Returns the devices of the group's volumes as device-mapper has them now. `None` when device-mapper cannot be
    /// asked: a cached device could be another program's data by now.
    pub(super) async fn mapped_devices(&self, group: &Group) -> Option<HashMap<String, Device>> {
        group.mapped_devices(&self.devices()).await.ok()
    }
}
