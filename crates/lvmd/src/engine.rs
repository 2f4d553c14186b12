//! The work behind the gRPC services: device classes on top of LVM.
//!
//! Changes of one volume group happen one after the other, and each checks the free space while it holds the lock of its
//! group: what two callers are promised at the same time is there for both.

mod change;
mod making;
mod snapshot;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use futures::Stream;
use lvm::{CommandRunner, LogicalVolume, LvName, Lvm, VgName, VolumeGroup};
use tokio::sync::{Mutex, OwnedMutexGuard, watch};
use topolvm_runtime::{CancellationToken, Tasks};
use tracing::Instrument as _;

use crate::device_class::{DeviceClass, DeviceClasses, ThinPool};
use crate::error::Error;
use crate::marks;
use crate::usage::{self, ClassUsage, Usage};

pub use change::CreateVolume;
pub(crate) use making::HalfMade;
pub use snapshot::CreateSnapshot;

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
    /// LVM does not work at all.
    #[error("LVM does not work; try the same on the command line")]
    Lvm(#[source] lvm::Error),
}

/// Device classes on top of LVM. Clones share everything.
pub struct Engine<R> {
    inner: Arc<Inner<R>>,
}

struct Inner<R> {
    lvm: Lvm<R>,
    classes: DeviceClasses,
    /// Held from the check of the free space to the end of the change. The only lock that is held across an await.
    locks: BTreeMap<VgName, Arc<Mutex<()>>>,
    tasks: Tasks,
    shutdown: CancellationToken,
    /// Counts changes.
    changes: watch::Sender<u64>,
    latest: watch::Sender<Arc<Usage>>,
    works: watch::Sender<bool>,
}

impl<R> Clone for Engine<R> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<R> fmt::Debug for Engine<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("classes", &self.inner.classes).finish_non_exhaustive()
    }
}

impl<R: CommandRunner> Engine<R> {
    /// Checks that LVM works and every class has its volume group and thin pool, and starts to look after them: first it removes
    /// what an earlier process left half made.
    pub async fn start(
        lvm: Lvm<R>,
        classes: DeviceClasses,
        tasks: &Tasks,
        shutdown: CancellationToken,
    ) -> Result<Self, StartError> {
        let groups = classes.volume_groups();
        let mut left_over = Vec::new();
        for (group, result) in groups.iter().zip(lvm.volume_groups(&groups).await) {
            match result {
                Ok(group) => {
                    check_thin_pools(&classes, &group)?;
                    left_over.extend(making::half_made(&group));
                }
                Err(lvm::Error::GroupNotFound(vg)) => {
                    let class = classes.iter().find(|class| class.volume_group == *group);
                    let class = class.map(|class| class.name.clone()).unwrap_or_default();
                    return Err(StartError::NoVolumeGroup { class, vg });
                }
                Err(error) => return Err(StartError::Lvm(error)),
            }
        }
        let engine = Self {
            inner: Arc::new(Inner {
                lvm,
                classes,
                locks: groups.into_iter().map(|group| (group, Arc::default())).collect(),
                tasks: tasks.clone(),
                shutdown: shutdown.clone(),
                changes: watch::Sender::new(0),
                latest: watch::Sender::default(),
                works: watch::Sender::new(true),
            }),
        };
        tasks.spawn("capacity", usage::publish(engine.clone(), engine.inner.changes.subscribe(), left_over, shutdown));
        Ok(engine)
    }

    /// The volumes of a class, also those that others made: everything in its thin pool, or everything in its volume group
    /// that is not part of a thin pool.
    pub async fn list(&self, class: &str) -> Result<Vec<LogicalVolume>, Error> {
        let class = self.class(class)?;
        let group = self.group(&class.volume_group).await?;
        // That a pool is missing and that it is empty are not the same.
        available(&class, &group)?;
        let mut volumes = group.volumes;
        volumes.retain(|volume| class.owns(volume) && !marks::is_half_made(volume));
        Ok(volumes)
    }

    /// Bytes that may still be given away in a class.
    pub async fn free(&self, class: &str) -> Result<u64, Error> {
        let class = self.class(class)?;
        available(&class, &self.group(&class.volume_group).await?)
    }

    /// The room in all classes. A volume group that is missing has none.
    pub async fn usage(&self) -> Result<Usage, Error> {
        Ok(self.look().await?.0)
    }

    /// The room in all classes, and the volumes that are half made at this moment.
    pub(crate) async fn look(&self) -> Result<(Usage, Vec<HalfMade>), Error> {
        let groups = self.inner.classes.volume_groups();
        let mut found = BTreeMap::new();
        for (name, result) in groups.iter().zip(self.inner.lvm.volume_groups(&groups).await) {
            match self.judged(result) {
                Ok(group) => drop(found.insert(name, group)),
                Err(lvm::Error::GroupNotFound(vg)) => tracing::error!(%vg, "volume group not found; its capacity is 0"),
                Err(error) => return Err(error.into()),
            }
        }
        let usage_of = |class: &Arc<DeviceClass>| ClassUsage::of(class, found.get(&class.volume_group));
        let usage = Usage { classes: self.inner.classes.iter().map(usage_of).collect() };
        Ok((usage, found.values().flat_map(making::half_made).collect()))
    }

    /// The room in all classes now and after each change, until the process is about to end.
    pub async fn watch(&self) -> Result<impl Stream<Item = Result<Arc<Usage>, Error>> + Send + use<R>, Error> {
        usage::watch(self, self.inner.shutdown.clone()).await
    }

    /// Whether the last word from LVM made sense.
    pub fn works(&self) -> watch::Receiver<bool> {
        self.inner.works.subscribe()
    }

    pub(crate) fn latest(&self) -> &watch::Sender<Arc<Usage>> {
        &self.inner.latest
    }

    fn class(&self, name: &str) -> Result<Arc<DeviceClass>, Error> {
        let class = self.inner.classes.get(name);
        class.cloned().ok_or_else(|| Error::UnknownDeviceClass(name.to_owned()))
    }

    async fn group(&self, vg: &VgName) -> Result<VolumeGroup, Error> {
        Ok(self.judged(self.inner.lvm.volume_group(vg).await)?)
    }

    async fn lock(&self, vg: &VgName) -> Result<OwnedMutexGuard<()>, Error> {
        let lock = self.inner.locks.get(vg).ok_or_else(|| Error::VolumeGroupMissing(vg.clone()))?;
        Ok(Arc::clone(lock).lock_owned().await)
    }

    /// Runs a change to its end, also when the caller gives up waiting: nobody would know what a change that was cut off
    /// left behind.
    async fn finish<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        self.inner.tasks.finish(change.in_current_span()).await.map_err(Error::Interrupted)?
    }

    /// Wakes the watchers.
    fn changed(&self) {
        self.inner.changes.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Notes whether LVM works, judging by what came of a command.
    fn judged<T>(&self, result: Result<T, lvm::Error>) -> Result<T, lvm::Error> {
        let works = result.as_ref().err().is_none_or(lvm_works);
        let turned = self.inner.works.send_if_modified(|known| std::mem::replace(known, works) != works);
        if turned && !works {
            tracing::error!("LVM stopped working");
            // So that somebody finds out when it works again.
            self.changed();
        }
        result
    }
}

fn check_thin_pools(classes: &DeviceClasses, group: &VolumeGroup) -> Result<(), StartError> {
    for class in classes.iter().filter(|class| class.volume_group == group.name) {
        if let Some(pool) = &class.thin_pool
            && pool.find(group).is_none()
        {
            return Err(StartError::NoThinPool {
                class: class.name.clone(),
                vg: group.name.clone(),
                pool: pool.name.clone(),
            });
        }
    }
    Ok(())
}

/// See [`DeviceClass::available`].
fn available(class: &DeviceClass, group: &VolumeGroup) -> Result<u64, Error> {
    let missing = |pool: &ThinPool| Error::ThinPoolMissing { vg: group.name.clone(), pool: pool.name.clone() };
    class.available(group).map_err(missing)
}

/// Whether LVM did its part, although not what was wanted.
fn lvm_works(error: &lvm::Error) -> bool {
    match error {
        lvm::Error::GroupNotFound(_)
        | lvm::Error::VolumeNotFound { .. }
        | lvm::Error::AlreadyExists { .. }
        | lvm::Error::NoSpace { .. }
        | lvm::Error::Busy { .. }
        | lvm::Error::Incomplete { .. } => true,
        // A change may fail for what was asked of it; a report is always the same.
        lvm::Error::Exit { command, .. } => command != "fullreport",
        lvm::Error::Timeout { .. } | lvm::Error::Run { .. } | lvm::Error::Report { .. } => false,
    }
}
