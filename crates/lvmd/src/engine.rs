//! The work behind the gRPC services: device classes on top of LVM.
//!
//! Changes of one volume group happen one after the other, and each checks the free space while it holds the lock of its
//! group: what two callers are promised at the same time is there for both. Reads are answered from what is known of the
//! groups, see [`group`].

mod change;
mod group;
mod headers;
mod locate;
mod making;
mod outside;
mod removal;
mod snapshot;
mod suspended;
mod thin_device;
mod troubles;
mod wiping;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use lvm::{Changed, Device, Host, LogicalVolume, LvName, Lvm, VgName, VolumeGroup};
use parking_lot::{RwLock, RwLockWriteGuard};
use tokio::sync::watch;
use topolvm_runtime::{CancellationToken, Tasks, error_chain};
use tracing::Instrument as _;

use crate::device_class::{DeviceClass, DeviceClasses, ThinPool};
use crate::error::Error;
use crate::marks::{self, Maker};
use crate::operation;
use crate::usage::{self, ClassUsage, Usage};

use group::{Group, Verdict};

pub use change::CreateVolume;
pub use snapshot::CreateSnapshot;
pub(crate) use wiping::Wiping;

/// Why an engine cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A device class points at nothing.
    #[error(
        "device class {class:?}: there is no volume group {vg}; create it with `vgcreate {vg} DEVICE...` or correct volume-group \
         in the configuration"
    )]
    NoVolumeGroup {
        /// The class.
        class: String,
        /// Its volume group.
        vg: VgName,
    },
    /// A thin class points at a pool that is not there.
    #[error(
        "device class {class:?}: there is no thin pool {vg}/{pool}; create it with `lvcreate -T {vg}/{pool} -L SIZE` or correct \
         thin-pool in the configuration"
    )]
    NoThinPool {
        /// The class.
        class: String,
        /// Its volume group.
        vg: VgName,
        /// Its pool.
        pool: LvName,
    },
    /// What is removed from a thin pool would be shown to the next one.
    #[error(
        "device class {class:?}: wipe is zero, but thin pool {vg}/{pool} gives out blocks as they are; run \
         `lvchange --zero y {vg}/{pool}` or take wipe out of the configuration"
    )]
    LeakingPool {
        /// The class.
        class: String,
        /// Its volume group.
        vg: VgName,
        /// Its pool.
        pool: LvName,
    },
    /// LVM does not work at all.
    #[error("LVM does not work; try the same on the command line")]
    Lvm(#[source] lvm::Error),
}

/// How well a volume group is known.
pub(crate) struct Knowledge {
    pub(crate) name: VgName,
    /// Since LVM was last asked.
    pub(crate) age: Duration,
    /// Whether LVM could not be asked when it should have been.
    pub(crate) is_stale: bool,
    /// How many physical volumes are missing, as far as is known.
    pub(crate) missing_pvs: u64,
}

/// Device classes on top of LVM. Clones share everything.
pub struct Engine<R> {
    inner: Arc<Inner<R>>,
}

struct Inner<R> {
    lvm: Lvm<R>,
    classes: RwLock<Arc<DeviceClasses>>,
    groups: RwLock<BTreeMap<VgName, Arc<Group>>>,
    maker: Maker,
    tasks: Tasks,
    shutdown: CancellationToken,
    latest: watch::Sender<Arc<Usage>>,
    works: watch::Sender<bool>,
    troubles: watch::Sender<Vec<String>>,
}

impl<R> Clone for Engine<R> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<R> fmt::Debug for Engine<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("maker", &self.inner.maker).finish_non_exhaustive()
    }
}

impl<R: Host> Engine<R> {
    /// Checks that LVM works and every class has its volume group and thin pool, and starts to look after them: first it removes
    /// what an earlier process of the same maker left half made.
    pub async fn start(
        lvm: Lvm<R>,
        classes: DeviceClasses,
        maker: Maker,
        tasks: &Tasks,
        shutdown: CancellationToken,
    ) -> Result<Self, StartError> {
        let engine = Self {
            inner: Arc::new(Inner {
                lvm,
                classes: RwLock::default(),
                groups: RwLock::default(),
                maker,
                tasks: tasks.clone(),
                shutdown,
                latest: watch::Sender::default(),
                works: watch::Sender::new(true),
                troubles: watch::Sender::default(),
            }),
        };
        engine.reconfigure(classes).await?;
        if let Err(error) = engine.adopt_leftovers().await {
            let later = wiping::look_for_leftovers(engine.clone(), error, engine.inner.shutdown.clone());
            tasks.spawn("leftovers", later);
        }
        Ok(engine)
    }

    /// Goes on with other classes, if each has its volume group and thin pool; else everything stays as it was. Volumes of a
    /// class that is no longer there stay what they are, and can be removed.
    pub async fn reconfigure(&self, classes: DeviceClasses) -> Result<(), StartError> {
        let known = self.groups();
        let new: Vec<_> = classes.volume_groups().into_iter().filter(|group| !known.contains_key(group)).collect();
        let mut found = Vec::new();
        for result in self.inner.lvm.volume_groups(&new).await {
            match result {
                Ok(group) => found.push(group),
                Err(lvm::Error::GroupNotFound(vg)) => return Err(no_group(&classes, vg)),
                Err(error) => return Err(StartError::Lvm(error)),
            }
        }
        let used = classes.volume_groups();
        for group in known.values().filter(|group| used.contains(&group.name)) {
            let _turn = group.turn().await;
            match self.current(group).await {
                Ok(group) => check_thin_pools(&classes, &group)?,
                Err(Error::Lvm(error)) => return Err(StartError::Lvm(error)),
                Err(_) => return Err(no_group(&classes, group.name.clone())),
            }
        }
        for group in &found {
            check_thin_pools(&classes, group)?;
        }
        let classes = self.with_thin_pool_threshold(classes).await;
        for group in found {
            self.look_after(group);
        }
        *self.inner.classes.write() = Arc::new(classes);
        self.publish();
        Ok(())
    }

    /// The classes with what lvm.conf says of thin pools.
    async fn with_thin_pool_threshold(&self, mut classes: DeviceClasses) -> DeviceClasses {
        if classes.iter().any(|class| class.thin_pool.is_some()) {
            match self.inner.lvm.thin_pool_threshold().await {
                Ok(threshold) => classes.set_thin_pool_threshold(threshold),
                Err(error) => {
                    let error = error_chain(&error);
                    tracing::warn!(
                        error,
                        "cannot learn from LVM up to which fill thin pools take volumes; taken for 100 %"
                    );
                }
            }
        }
        classes
    }

    /// Keeps what is known of a group true from now on, and wipes what is to be wiped in it. LVM said this of it just now.
    fn look_after(&self, known: VolumeGroup) {
        let group = match self.write_groups().entry(known.name.clone()) {
            Entry::Occupied(_) => return,
            Entry::Vacant(place) => {
                troubles::tell_missing(&known.name, 0, known.missing_pvs);
                Arc::clone(place.insert(Arc::new(Group::new(known.name.clone(), Some(known)))))
            }
        };
        let shutdown = || self.inner.shutdown.clone();
        self.inner.tasks.spawn("volume group", outside::follow(self.clone(), Arc::clone(&group), shutdown()));
        self.inner.tasks.spawn("wiping", wiping::work(self.clone(), group, shutdown()));
    }

    /// The volumes of a class, also those that others made: everything in its thin pool, or everything in its volume group
    /// that is not part of a thin pool.
    pub async fn list(&self, class: &str) -> Result<Vec<LogicalVolume>, Error> {
        let class = self.class(class)?;
        let group = self.group(&class.volume_group)?;
        let devices = self.mapped(&group).await;
        if devices.is_none() {
            self.ask_lvm_once(&group).await?;
        }
        let known = group.known()?;
        // That a pool is missing and that it is empty are not the same.
        available(&class, &known)?;
        let is_listed = |volume: &&LogicalVolume| class.owns(volume) && !marks::is_hidden(volume);
        let mut volumes: Vec<_> = known.volumes.iter().filter(is_listed).cloned().collect();
        for volume in &mut volumes {
            place(volume, &known.name, devices.as_ref());
        }
        Ok(volumes)
    }

    /// Bytes that may still be given away in a class.
    pub fn free(&self, class: &str) -> Result<u64, Error> {
        let class = self.class(class)?;
        available(&class, &*self.group(&class.volume_group)?.known()?)
    }

    /// The room in all classes. A volume group that is missing has none.
    pub fn usage(&self) -> Usage {
        let groups = self.groups();
        let usage_of = |class: &Arc<DeviceClass>| {
            let group = groups.get(&class.volume_group).and_then(|group| group.get());
            ClassUsage::of(class, group.as_deref())
        };
        Usage { classes: self.classes().iter().map(usage_of).collect() }
    }

    /// The room in all classes now and after each change, until the process is about to end.
    pub fn watch(&self) -> impl Stream<Item = Result<Arc<Usage>, Error>> + Send + use<R> {
        usage::watch(&self.inner.latest, self.inner.shutdown.clone())
    }

    /// Whether what is known of all groups is known to be so.
    pub fn works(&self) -> watch::Receiver<bool> {
        self.inner.works.subscribe()
    }

    /// What is known of each volume group.
    pub(crate) fn knowledge(&self) -> Vec<Knowledge> {
        let groups = self.groups();
        let knowledge = |group: &Arc<Group>| Knowledge {
            name: group.name.clone(),
            age: group.age(),
            is_stale: group.staleness().is_some(),
            missing_pvs: group.get().map_or(0, |group| group.missing_pvs),
        };
        groups.values().map(knowledge).collect()
    }

    /// Whether any class needs the group.
    fn is_used(&self, group: &Group) -> bool {
        self.classes().iter().any(|class| class.volume_group == group.name)
    }

    /// Where volumes are at this moment; `None` when LVM alone can tell which device belongs to which volume. A wrong device
    /// would be somebody else's data.
    async fn mapped(&self, group: &Group) -> Option<HashMap<String, Device>> {
        group.devices(self.devices()).await.ok()
    }

    fn devices(&self) -> &Arc<R> {
        self.inner.lvm.runner()
    }

    fn classes(&self) -> Arc<DeviceClasses> {
        Arc::clone(&self.inner.classes.read())
    }

    fn groups(&self) -> BTreeMap<VgName, Arc<Group>> {
        self.inner.groups.read().clone()
    }

    fn write_groups(&self) -> RwLockWriteGuard<'_, BTreeMap<VgName, Arc<Group>>> {
        self.inner.groups.write()
    }

    /// The class of a request.
    pub(crate) fn class(&self, name: &str) -> Result<Arc<DeviceClass>, Error> {
        self.classes().get(name).cloned().ok_or_else(|| Error::UnknownDeviceClass(name.to_owned()))
    }

    /// The class that has its volumes where this one is.
    fn class_that_owns(&self, vg: &VgName, volume: &LogicalVolume) -> Option<Arc<DeviceClass>> {
        self.classes().iter().find(|class| class.volume_group == *vg && class.owns(volume)).cloned()
    }

    fn group(&self, vg: &VgName) -> Result<Arc<Group>, Error> {
        let groups = self.inner.groups.read();
        groups.get(vg).cloned().ok_or_else(|| Error::VolumeGroupMissing(vg.clone()))
    }

    /// What is true of a group: what is known if the disks prove it, else what LVM says. The caller has the group's turn.
    async fn current(&self, group: &Group) -> Result<Arc<VolumeGroup>, Error> {
        if group.check(self.devices()).await != Verdict::Current {
            self.ask_lvm(group).await?;
        }
        group.known()
    }

    /// Has LVM report on a group. The caller has the group's turn, so that no change is in between.
    async fn ask_lvm(&self, group: &Group) -> Result<(), lvm::Error> {
        let looks = group.look(self.devices()).await.ok();
        match self.inner.lvm.volume_group(&group.name).await {
            Ok(found) => {
                self.learn(group, Some(found));
                self.resume_suspended(group).await;
            }
            Err(lvm::Error::GroupNotFound(vg)) => {
                tracing::error!(%vg, "volume group not found; its capacity is 0");
                self.learn(group, None);
            }
            Err(error) => {
                self.doubt(group, &error);
                return Err(error);
            }
        }
        if let Some(looks) = looks {
            group.accept(looks);
        }
        Ok(())
    }

    /// The same for somebody without the turn, unless LVM was asked while waiting for it.
    async fn ask_lvm_once(&self, group: &Group) -> Result<(), Error> {
        let before = tokio::time::Instant::now();
        let _turn = group.turn().await;
        if group.age() >= before.elapsed() {
            self.ask_lvm(group).await?;
        }
        Ok(())
    }

    fn learn(&self, group: &Group, found: Option<VolumeGroup>) {
        if let Some(found) = &found {
            troubles::tell_missing(&group.name, group.get().map_or(0, |before| before.missing_pvs), found.missing_pvs);
        }
        group.learn(found);
        self.publish();
    }

    fn doubt(&self, group: &Group, error: &lvm::Error) {
        let is_slow = matches!(error, lvm::Error::Timeout { .. });
        if group.doubt(&error.to_string(), is_slow) {
            tracing::error!(vg = %group.name, %error, "cannot read the volume group; what was known of it may no longer be so");
        }
        self.publish();
    }

    /// Takes over what came of a change.
    fn take(&self, group: &Group, changed: Changed) -> Result<(), lvm::Error> {
        match (changed.group, &changed.done) {
            (Some(after), _) => self.learn(group, Some(after)),
            (None, Err(error)) => self.doubt(group, error),
            (None, Ok(())) => {}
        }
        changed.done
    }

    /// Runs a change to its end, also when the caller gives up waiting: nobody would know what a change that was cut off
    /// left behind.
    async fn finish<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let change = operation::carried(operation::counter(), change);
        self.inner.tasks.finish(change.in_current_span()).await.map_err(Error::Interrupted)?
    }

    /// Tells everybody what is known now.
    fn publish(&self) {
        // Looked up inside, so that of two who tell at the same time the second tells what both know.
        self.inner.latest.send_if_modified(|known| {
            let usage = self.usage();
            let is_news = **known != usage;
            *known = Arc::new(usage);
            is_news
        });
        self.inner.works.send_if_modified(|known| {
            // An LVM that is slow is not dead: whoever ends lvmd for it only makes it wait once more.
            let fails = |group: &Group| group.staleness().is_some() && !group.is_slow() && self.is_used(group);
            let works = !self.groups().values().any(|group| fails(group));
            std::mem::replace(known, works) != works
        });
        self.publish_troubles();
    }
}

/// Corrects where a volume is.
fn place(volume: &mut LogicalVolume, vg: &VgName, devices: Option<&HashMap<String, Device>>) {
    if let Some(devices) = devices {
        volume.device = devices.get(&volume.mapper_name(vg)).copied();
    }
}

fn no_group(classes: &DeviceClasses, vg: VgName) -> StartError {
    let class = classes.iter().find(|class| class.volume_group == vg);
    StartError::NoVolumeGroup { class: class.map(|class| class.name.clone()).unwrap_or_default(), vg }
}

fn check_thin_pools(classes: &DeviceClasses, group: &VolumeGroup) -> Result<(), StartError> {
    for class in classes.iter().filter(|class| class.volume_group == group.name) {
        let (vg, name) = (group.name.clone(), class.name.clone());
        if let Some(pool) = class.thin_pool.as_ref().filter(|pool| pool.find(group).is_none()) {
            return Err(StartError::NoThinPool { class: name, vg, pool: pool.name.clone() });
        }
        if let Some(pool) = class.leaking_pool(group) {
            return Err(StartError::LeakingPool { class: name, vg, pool: pool.name.clone() });
        }
    }
    Ok(())
}

/// See [`DeviceClass::available`].
fn available(class: &DeviceClass, group: &VolumeGroup) -> Result<u64, Error> {
    class.available(group).map_err(|pool| missing(pool, group))
}

fn missing(pool: &ThinPool, group: &VolumeGroup) -> Error {
    Error::ThinPoolMissing { vg: group.name.clone(), pool: pool.name.clone() }
}
