//! How much room each device class has, told to everybody who watches.

use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use lvm::{CommandRunner, VolumeGroup};
use tokio::sync::watch;
use topolvm_runtime::CancellationToken;

use crate::device_class::{DeviceClass, ThinPool};
use crate::engine::{Engine, HalfMade};
use crate::error::Error;

/// Changes that others make in LVM are noticed this late at most.
const REFRESH: Duration = Duration::from_mins(10);
/// After a failure the next look is this soon, then twice as late each time ...
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// ... up to this.
const LAST_RETRY: Duration = Duration::from_mins(1);

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
    /// Bytes that may still be given away, spare not included. 0 while the volume group or the thin pool is missing.
    pub free: u64,
    /// Size of the volume group in bytes. 0 while it is missing.
    pub size: u64,
    /// The thin pool of a thin class.
    pub thin: Option<ThinUsage>,
}

/// The room in a thin pool, as it is and not as it is promised. All 0 while the pool is missing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ThinUsage {
    /// Bytes that are free in its volume group, spare included.
    pub group_free: u64,
    /// Size of the pool in bytes.
    pub size: u64,
    /// How full its data is.
    pub data_percent: f64,
    /// How full its metadata is.
    pub metadata_percent: f64,
}

impl ClassUsage {
    /// The room in a class whose volume group is this, or is missing.
    pub(crate) fn of(class: &DeviceClass, group: Option<&VolumeGroup>) -> Self {
        let free = group.map(|group| class.available(group).unwrap_or_else(|pool| {
            tracing::error!(class = class.name, vg = %group.name, pool = %pool.name, "thin pool not found; its capacity is 0");
            0
        }));
        Self {
            name: class.name.clone(),
            default: class.default,
            free: free.unwrap_or(0),
            size: group.map_or(0, |group| group.size),
            thin: class.thin_pool.as_ref().map(|pool| ThinUsage::of(pool, group)),
        }
    }
}

impl ThinUsage {
    fn of(pool: &ThinPool, group: Option<&VolumeGroup>) -> Self {
        let Some((group, pool)) = group.and_then(|group| Some((group, pool.find(group)?))) else {
            return Self::default();
        };
        Self {
            group_free: group.free,
            size: pool.size,
            // LVM says nothing while the pool is not active.
            data_percent: pool.data_percent.unwrap_or(0.0),
            metadata_percent: pool.metadata_percent.unwrap_or(0.0),
        }
    }
}

impl Usage {
    /// Bytes that may still be given away in the default class; 0 when there is none.
    pub fn default_free(&self) -> u64 {
        self.classes.iter().find(|class| class.default).map_or(0, |class| class.free)
    }
}

/// Looks again after each change and every ten minutes, and tells everybody. A failure is tried again until it is over:
/// watchers keep what they know until then. Before all that it removes the volumes that an earlier process left
/// half made, and later those that were half made at two quiet looks in a row. `changes` must be subscribed before anything can change.
pub(crate) async fn publish<R: CommandRunner>(
    engine: Engine<R>,
    mut changes: watch::Receiver<u64>,
    left_over: Vec<HalfMade>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    engine.remove_left_over(left_over).await;
    let mut wait = REFRESH;
    let mut half_made = Vec::new();
    loop {
        let is_quiet = tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            _ = changes.changed() => false,
            () = tokio::time::sleep(wait) => true,
        };
        changes.mark_unchanged();
        // An LVM that hangs must not hold up the end
        let Some(look) = shutdown.run_until_cancelled(engine.look()).await else { return Ok(()) };
        match look {
            Ok((usage, found)) => {
                engine.latest().send_replace(Arc::new(usage));
                if is_quiet {
                    // Nothing takes that long to be made: an lvcreate that outlived its lvmd has left it.
                    let left_over = found.iter().filter(|volume| half_made.contains(*volume)).cloned().collect();
                    engine.remove_left_over(left_over).await;
                    half_made = found;
                }
                wait = REFRESH;
            }
            Err(error) => {
                wait = if wait == REFRESH { FIRST_RETRY } else { LAST_RETRY.min(wait * 2) };
                let error = format!("{:#}", anyhow::Error::from(error));
                tracing::error!(error, retry_seconds = wait.as_secs(), "cannot read the volume groups");
            }
        }
    }
}

/// The usage now, and then again whenever it was looked up anew; several looks in a row that the consumer was too slow for
/// count as one. Ends with an error when the process is about to end, so that a client knows it must come back.
pub(crate) async fn watch<R: CommandRunner>(
    engine: &Engine<R>,
    shutdown: CancellationToken,
) -> Result<impl Stream<Item = Result<Arc<Usage>, Error>> + Send + use<R>, Error> {
    // Subscribed first and looked then: no change in between is lost.
    let latest = engine.latest().subscribe();
    let first = engine.usage().await.map_err(|error| Error::UsageUnknown(Box::new(error)))?;
    Ok(futures::stream::unfold(Next::First(Arc::new(first), latest, shutdown), step))
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
