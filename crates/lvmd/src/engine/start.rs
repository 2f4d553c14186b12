//! Starts the engine and the background tasks of its volume groups, and replaces its device classes while it runs.

use std::collections::btree_map::Entry;
use std::sync::Arc;

use lvm::{FullName, Host, Lvm, VgName, VolumeGroup};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{mpsc, watch};
use topolvm_runtime::{CancellationToken, Tasks, error_chain};

use super::group::Group;
use super::proof::expect_proofs;
use super::state::{Engine, Inner};
use super::{evacuation, external_changes, storage_health, unconfigured_groups, wiping};
use crate::device_class::{DeviceClasses, ThinPool};
use crate::error::Error;
use crate::tags::InstanceId;

/// The errors of a start of the engine and of a change of its device classes.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The volume group of a device class does not exist.
    #[error(
        "device class {class:?}: there is no volume group {vg}; create it with `vgcreate {vg} DEVICE...` or correct \
         volume-group in the configuration"
    )]
    NoVolumeGroup {
        /// The class.
        class: String,
        /// Its volume group.
        vg: VgName,
    },
    /// The thin pool of a thin class does not exist.
    #[error(
        "device class {class:?}: there is no thin pool {pool}; create it with `lvcreate -T {pool} -L SIZE` or correct \
         thin-pool in the configuration"
    )]
    NoThinPool {
        /// The class.
        class: String,
        /// Its pool.
        pool: FullName,
    },
    /// The class wipes, but its thin pool would show the contents of removed volumes to new ones.
    #[error(
        "device class {class:?}: wipe is zero, but thin pool {pool} gives out blocks as they are; run \
         `lvchange --zero y {pool}` or take wipe out of the configuration"
    )]
    PoolDoesNotZero {
        /// The class.
        class: String,
        /// Its pool.
        pool: FullName,
    },
    /// LVM does not work at all.
    #[error("LVM does not work; try the same on the command line")]
    Lvm(#[source] lvm::Error),
}

impl<R: Host> Engine<R> {
    /// Checks that LVM works and that every class that is not optional has its volume group and thin pool, then starts
    /// the background tasks of each volume group. These first remove the volumes that an earlier process of this
    /// instance left unfinished. A group that LVM finds and that cannot be used, such as one of another machine, counts
    /// as there, and has no capacity.
    pub async fn start(
        lvm: Lvm<R>,
        classes: DeviceClasses,
        instance: InstanceId,
        tasks: &Tasks,
        shutdown: CancellationToken,
    ) -> Result<Self, StartError> {
        let (disk_additions, wanted_disks) = mpsc::channel(1);
        let engine = Self {
            inner: Arc::new(Inner {
                lvm,
                classes: RwLock::default(),
                groups: RwLock::default(),
                instance,
                tasks: tasks.clone(),
                shutdown,
                capacity: watch::Sender::default(),
                lvm_works: watch::Sender::new(true),
                storage_problems: watch::Sender::default(),
                inventory: watch::Sender::default(),
                disks: RwLock::default(),
                node_labels: watch::Sender::default(),
                disk_additions,
                wanted_disks: Mutex::new(Some(wanted_disks)),
            }),
        };
        engine.reconfigure(classes).await?;
        engine.tag_groups().await;
        if let Err(error) = engine.track_unconfigured_groups().await {
            let retries = unconfigured_groups::retry(engine.clone(), error, engine.inner.shutdown.clone());
            tasks.spawn("unconfigured volume groups", retries);
        }
        Ok(engine)
    }

    /// Replaces the device classes if each of the new ones has its volume group, without which only an optional one can
    /// be, and thin pool; otherwise changes nothing. Volumes of a class that is no longer configured stay, and can be
    /// found, grown and removed.
    pub async fn reconfigure(&self, classes: DeviceClasses) -> Result<(), StartError> {
        let tracked = self.groups();
        let used = classes.volume_groups();
        let new: Vec<_> = used.iter().filter(|group| !tracked.contains_key(*group)).cloned().collect();
        let (mut found, mut missing, mut unusable) = (Vec::new(), Vec::new(), Vec::new());
        for vg in &new {
            self.inner.lvm.serve(vg, None);
        }
        for (vg, result) in new.iter().zip(self.inner.lvm.volume_groups(&new).await) {
            match result {
                Ok(group) => found.push(group),
                Err(lvm::Error::GroupNotFound(vg)) if !classes.requires(&vg) => missing.push(vg),
                Err(lvm::Error::GroupNotFound(vg)) => return Err(no_volume_group(&classes, vg)),
                // It waits for an administrator, and the other groups do not.
                Err(error) if error.is_unusable_group() => unusable.push((vg.clone(), error)),
                Err(error) => return Err(StartError::Lvm(error)),
            }
        }
        for group in tracked.values().filter(|group| used.contains(&group.name)) {
            let _lock = group.lock().await;
            match self.current(group).await {
                Ok(group) => check_thin_pools(&classes, &group)?,
                Err(Error::Lvm(error)) if error.is_unusable_group() => {}
                Err(Error::Lvm(error)) => return Err(StartError::Lvm(error)),
                Err(_) if classes.requires(&group.name) => {
                    return Err(no_volume_group(&classes, group.name.clone()));
                }
                Err(_) => {}
            }
        }
        for group in &found {
            check_thin_pools(&classes, group)?;
        }
        let classes = self.with_thin_pool_threshold(classes).await;
        for group in found {
            self.track_group(group);
        }
        for vg in missing {
            tracing::warn!(%vg, "volume group not found; its optional device classes are offered when it is there");
            self.track(vg, None);
        }
        for (vg, error) in unusable {
            let group = self.track(vg, None);
            self.mark_stale(&group, &error);
        }
        let before = std::mem::replace(&mut *self.inner.classes.write(), Arc::new(classes));
        let classes = self.classes();
        for group in self.groups().values() {
            expect_proofs(group, &classes.changed_since(&before));
        }
        self.publish();
        Ok(())
    }

    /// Puts a volume group that LVM has just reported into the cache and keeps it there, unless it is there already.
    pub(super) fn track_group(&self, reported: VolumeGroup) {
        self.track(reported.name.clone(), Some(reported));
    }

    /// Does the same for a group that the machine may lack, and returns what is in the cache.
    fn track(&self, vg: VgName, reported: Option<VolumeGroup>) -> Arc<Group> {
        let group = match self.inner.groups.write().entry(vg.clone()) {
            Entry::Occupied(entry) => return Arc::clone(entry.get()),
            Entry::Vacant(entry) => {
                self.inner.lvm.serve(&vg, reported.as_ref());
                let missing_pvs = reported.as_ref().map_or(0, |group| group.missing_pvs);
                storage_health::log_missing_pvs(&vg, 0, missing_pvs);
                Arc::clone(entry.insert(Arc::new(Group::new(vg, reported))))
            }
        };
        let shutdown = || self.inner.shutdown.clone();
        let watching = external_changes::watch_group(self.clone(), Arc::clone(&group), shutdown());
        self.inner.tasks.spawn("volume group", watching);
        let evacuating = evacuation::evacuate_disks(self.clone(), Arc::clone(&group), shutdown());
        self.inner.tasks.spawn("evacuation", evacuating);
        let wiping = wiping::wipe_removed_volumes(self.clone(), Arc::clone(&group), shutdown());
        self.inner.tasks.spawn("wiping", wiping);
        group
    }

    /// Returns the classes with the host's `activation/thin_pool_autoextend_threshold` (lvm.conf(5)) in the thin ones.
    async fn with_thin_pool_threshold(&self, mut classes: DeviceClasses) -> DeviceClasses {
        if classes.iter().any(|class| class.thin_pool.is_some()) {
            match self.inner.lvm.thin_pool_threshold().await {
                Ok(threshold) => classes.set_thin_pool_threshold(threshold),
                Err(error) => {
                    let error = error_chain(&error);
                    tracing::warn!(error, "cannot read thin_pool_autoextend_threshold from LVM; 100 % is assumed");
                }
            }
        }
        classes
    }
}

fn no_volume_group(classes: &DeviceClasses, vg: VgName) -> StartError {
    let class = classes.iter().find(|class| class.volume_group == vg);
    StartError::NoVolumeGroup { class: class.map(|class| class.name.clone()).unwrap_or_default(), vg }
}

fn check_thin_pools(classes: &DeviceClasses, group: &VolumeGroup) -> Result<(), StartError> {
    for class in classes.iter().filter(|class| class.volume_group == group.name) {
        let (class_name, full_name) = (class.name.clone(), |pool: &ThinPool| FullName::new(&group.name, &pool.name));
        if let Some(pool) = class.thin_pool.as_ref().filter(|pool| pool.share.is_none() && pool.find(group).is_none()) {
            return Err(StartError::NoThinPool { class: class_name, pool: full_name(pool) });
        }
        if let Some(pool) = class.pool_without_zeroing(group) {
            return Err(StartError::PoolDoesNotZero { class: class_name, pool: full_name(pool) });
        }
    }
    Ok(())
}
