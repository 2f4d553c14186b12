//! Starts the engine and the background tasks of its volume groups, and replaces its device classes while it runs.

use std::sync::Arc;

use lvm::{FullName, Host, Lvm, VgName, VolumeGroup};
use lvmd_config::tags::InstanceId;
use lvmd_config::{DeviceClasses, ThinPool};
use topolvm_runtime::{CancellationToken, Tasks, error_chain};

use super::Engine;
use super::group_tags::tag_groups;
use super::state::Shared;
use super::tracking::{track, track_group};
use super::unconfigured_groups::UnconfiguredGroups;
use super::unproven_classes::expect_proofs;
use crate::error::Error;
use crate::lvm_reader::LvmReader;

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
        let shared = Arc::new(Shared::new(lvm, instance, tasks.clone(), shutdown));
        let engine = Self { shared: Arc::clone(&shared) };
        engine.reconfigure(classes).await?;
        tag_groups(&shared).await;
        let unconfigured = UnconfiguredGroups::new(shared);
        if let Err(error) = unconfigured.track_all().await {
            tasks.spawn("unconfigured volume groups", unconfigured.retry(error));
        }
        Ok(engine)
    }

    /// Replaces the device classes if each of the new ones has its volume group, without which only an optional one can
    /// be, and thin pool; otherwise changes nothing. Volumes of a class that is no longer configured stay, and can be
    /// found, grown and removed.
    pub async fn reconfigure(&self, classes: DeviceClasses) -> Result<(), StartError> {
        let shared = &self.shared;
        let tracked = shared.groups();
        let used = classes.volume_groups();
        let new: Vec<_> = used.iter().filter(|group| !tracked.contains_key(*group)).cloned().collect();
        let (mut found, mut missing, mut unusable) = (Vec::new(), Vec::new(), Vec::new());
        for vg in &new {
            shared.reader().serve(vg, None);
        }
        for (vg, result) in new.iter().zip(shared.reader().volume_groups(&new).await) {
            match result {
                Ok(group) => found.push(group),
                Err(lvm::Error::GroupNotFound(vg)) if !classes.requires(&vg) => missing.push(vg),
                Err(lvm::Error::GroupNotFound(vg)) => return Err(no_volume_group(&classes, vg)),
                // It waits for an administrator, and the other groups do not.
                Err(error) if error.is_unusable_group() => unusable.push((vg.clone(), error)),
                Err(error) => return Err(StartError::Lvm(error)),
            }
        }
        for group in tracked.into_values().filter(|group| used.contains(&group.name)) {
            let mut group = shared.handle(group).lock().await;
            match group.current().await {
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
        let classes = with_thin_pool_threshold(shared.reader(), classes).await;
        for group in found {
            track_group(shared, group);
        }
        for vg in missing {
            tracing::warn!(%vg, "volume group not found; its optional device classes are offered when it is there");
            track(shared, vg, None);
        }
        for (vg, error) in unusable {
            let group = track(shared, vg, None);
            shared.mark_stale(&group, &error);
        }
        let before = std::mem::replace(&mut *shared.classes.write(), Arc::new(classes));
        let classes = shared.classes();
        for group in shared.groups().values() {
            expect_proofs(group, &classes.changed_since(&before));
        }
        shared.publish();
        Ok(())
    }
}

/// Returns the classes with the host's `activation/thin_pool_autoextend_threshold` (lvm.conf(5)) in the thin ones.
async fn with_thin_pool_threshold<R: Host>(lvm: &LvmReader<R>, mut classes: DeviceClasses) -> DeviceClasses {
    if classes.iter().any(|class| class.thin_pool.is_some()) {
        match lvm.thin_pool_threshold().await {
            Ok(threshold) => classes.set_thin_pool_threshold(threshold),
            Err(error) => {
                let error = error_chain(&error);
                tracing::warn!(error, "cannot read thin_pool_autoextend_threshold from LVM; 100 % is assumed");
            }
        }
    }
    classes
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
