//! The state of the engine for clients, health checks and metrics, from the cache.

use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use lvm::{Host, VgName};
use lvmd_config::{Capacity, DeviceClass};
use tokio::sync::watch;

use super::Engine;
use super::evacuation::{EvacuationStatus, evacuation_status};
use super::group::Group;
use super::pool_maintenance::PoolStatus;
use super::wiping::{WipeStatus, wipe_status};
use crate::error::Error;
use crate::lvm_reader::LvmReader;
use crate::storage_report::StorageReport;
use crate::watch_stream;

/// The state of the cache of one volume group, for metrics.
#[derive(Debug)]
pub struct GroupStatus {
    /// Its name.
    pub name: VgName,
    /// Time since LVM last reported on the group.
    pub age: Duration,
    /// True if LVM failed when it was last asked about the group.
    pub is_stale: bool,
    /// Number of missing physical volumes in the last report.
    pub missing_pvs: u64,
    /// Number of thin pools of device classes that ignore discards.
    pub pools_ignoring_discards: u64,
}

impl<R: Host> Engine<R> {
    /// Returns the device class of a request; the empty name is the default class.
    pub fn class(&self, name: &str) -> Result<Arc<DeviceClass>, Error> {
        self.shared.class(name)
    }

    /// Returns the capacity of all device classes. A missing volume group has none; an optional class without its group
    /// is left out.
    pub fn capacity(&self) -> Capacity {
        self.shared.capacity()
    }

    /// Streams the capacity of all device classes: now, and after each change until the shutdown begins.
    pub fn watch_capacity(&self) -> impl Stream<Item = Result<Arc<Capacity>, Error>> + Send + use<R> {
        watch_stream::changes(&self.shared.capacity, self.shared.shutdown.clone())
    }

    /// Returns the storage report. An optional class without its volume group is left out, and so is the group.
    pub fn storage_report(&self) -> StorageReport {
        self.shared.storage_report()
    }

    /// Streams the storage report in the same way.
    pub fn watch_storage(&self) -> impl Stream<Item = Result<Arc<StorageReport>, Error>> + Send + use<R> {
        watch_stream::changes(&self.shared.storage_report, self.shared.shutdown.clone())
    }

    /// Subscribes to the health of LVM: false while LVM fails for a volume group that a device class needs.
    pub fn lvm_works(&self) -> watch::Receiver<bool> {
        self.shared.lvm_works.subscribe()
    }

    /// Subscribes to the problems of the storage, one sentence each: missing disks, a hanging LVM, volumes that cannot
    /// be wiped.
    pub fn storage_problems(&self) -> watch::Receiver<Vec<String>> {
        self.shared.storage_problems.subscribe()
    }

    /// Returns the commands of LVM that change nothing.
    pub fn lvm_reader(&self) -> LvmReader<R> {
        self.shared.reader().clone()
    }

    /// Returns the state of the cache of each volume group.
    pub fn group_status(&self) -> Vec<GroupStatus> {
        let (groups, classes) = (self.shared.groups(), self.shared.classes());
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

    /// Returns the state of the thin pools that lvmd maintains.
    pub fn pool_status(&self) -> Vec<PoolStatus> {
        self.shared.groups().values().flat_map(|group| group.pool_maintenance.status()).collect()
    }

    /// Returns the physical volumes that are being emptied.
    pub fn evacuation_status(&self) -> Vec<EvacuationStatus> {
        self.shared.groups().values().flat_map(|group| evacuation_status(group)).collect()
    }

    /// Returns what is being wiped, and failed in this process, by group and class. Classes that wipe are listed also
    /// when nothing is being wiped.
    pub fn wipe_status(&self) -> Vec<WipeStatus> {
        wipe_status(&self.shared)
    }
}
