//! How much room each device class has, told to everybody who watches.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use futures::Stream;
use lvm::{LogicalVolume, LvAttr, VolumeGroup};
use tokio::sync::watch;
use topolvm_runtime::CancellationToken;

use crate::device_class::{DeviceClass, ThinPool};
use crate::error::Error;
use crate::marks;

/// The room in all device classes at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usage {
    /// One entry for each class, in the order of the configuration.
    pub classes: Vec<ClassUsage>,
}

/// The room in one device class.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassUsage {
    /// Name of the class.
    pub name: String,
    /// Whether it is the default class.
    pub default: bool,
    /// Bytes that may still be given away, spare not included. 0 while the volume group, one of its physical volumes or the thin
    /// pool is missing.
    pub free: u64,
    /// Bytes that are free in the volume group, less the spare of a thick class: more than can be made of them where volumes are
    /// striped or RAID. 0 like `free`.
    pub group_free: u64,
    /// Size of the volume group in bytes. 0 while it is missing.
    pub size: u64,
    /// How many volumes there are, also those that others made, but not those that are being wiped.
    pub volumes: u64,
    /// Another number whenever a volume comes, goes or gets another name, so that watchers hear of it also where that takes no room.
    pub names: u64,
    /// The thin pool of a thin class.
    pub thin: Option<ThinUsage>,
}

/// The room in a thin pool, as it is and not as it is promised. All 0 while the pool is missing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ThinUsage {
    /// Size of the pool in bytes.
    pub size: u64,
    /// How full its data is.
    pub data_percent: f64,
    /// How full its metadata is.
    pub metadata_percent: f64,
    /// What LVM says of its state; `None` while the pool is missing.
    pub attr: Option<LvAttr>,
}

impl ClassUsage {
    /// The room in a class whose volume group is this, or is missing.
    pub(crate) fn of(class: &DeviceClass, group: Option<&VolumeGroup>) -> Self {
        let free = group.map(|group| class.available(group).unwrap_or_else(|pool| {
            tracing::error!(class = class.name, vg = %group.name, pool = %pool.name, "thin pool not found; its capacity is 0");
            0
        }));
        let is_there = |volume: &&LogicalVolume| class.owns(volume) && !marks::is_wiping(volume);
        Self {
            name: class.name.clone(),
            default: class.default,
            free: free.unwrap_or(0),
            group_free: group.map_or(0, |group| class.group_free(group)),
            size: group.map_or(0, |group| group.size),
            volumes: group.map_or(0, |group| count(group.volumes.iter().filter(is_there))),
            names: group.map_or(0, |group| names(group.volumes.iter().filter(is_there))),
            thin: class.thin_pool.as_ref().map(|pool| ThinUsage::of(pool, group)),
        }
    }
}

/// In LVM's order, which is that of the names.
fn names<'a>(volumes: impl Iterator<Item = &'a LogicalVolume>) -> u64 {
    let mut hasher = DefaultHasher::new();
    volumes.for_each(|volume| (&volume.uuid, &volume.name).hash(&mut hasher));
    hasher.finish()
}

fn count(items: impl Iterator) -> u64 {
    u64::try_from(items.count()).unwrap_or(u64::MAX)
}

impl ThinUsage {
    fn of(pool: &ThinPool, group: Option<&VolumeGroup>) -> Self {
        let Some(pool) = group.and_then(|group| pool.find(group)) else {
            return Self::default();
        };
        Self {
            size: pool.size,
            // LVM says nothing while the pool is not active.
            data_percent: pool.data_percent.unwrap_or(0.0),
            metadata_percent: pool.metadata_percent.unwrap_or(0.0),
            attr: Some(pool.attr),
        }
    }
}

impl Usage {
    /// The default class, if there is one.
    pub fn default_class(&self) -> Option<&ClassUsage> {
        self.classes.iter().find(|class| class.default)
    }
}

/// The usage now, and then again whenever something was learned; several times in a row that the consumer was too slow for
/// count as one. Ends with an error when the process is about to end, so that a client knows it must come back.
pub(crate) fn watch(
    latest: &watch::Sender<Arc<Usage>>,
    shutdown: CancellationToken,
) -> impl Stream<Item = Result<Arc<Usage>, Error>> + Send + use<> {
    let mut latest = latest.subscribe();
    let first = Arc::clone(&latest.borrow_and_update());
    futures::stream::unfold(Next::First(first, latest, shutdown), step)
}

enum Next {
    First(Arc<Usage>, watch::Receiver<Arc<Usage>>, CancellationToken),
    Change(watch::Receiver<Arc<Usage>>, CancellationToken),
    End,
}

async fn step(next: Next) -> Option<(Result<Arc<Usage>, Error>, Next)> {
    match next {
        Next::First(usage, latest, shutdown) => Some((Ok(usage), Next::Change(latest, shutdown))),
        Next::Change(mut latest, shutdown) => {
            let changed = tokio::select! {
                () = shutdown.cancelled() => false,
                changed = latest.changed() => changed.is_ok(),
            };
            if !changed {
                return Some((Err(Error::Stopping), Next::End));
            }
            let usage = Arc::clone(&latest.borrow_and_update());
            Some((Ok(usage), Next::Change(latest, shutdown)))
        }
        Next::End => None,
    }
}
