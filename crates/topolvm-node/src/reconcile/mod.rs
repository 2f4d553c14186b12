//! Makes what the LogicalVolume objects of this node ask for, through lvmd, and writes what there is to their status.
//!
//! Each step can be broken off anywhere and done again: an LV has the UID of its object as name, and lvmd answers the
//! second wish for the same LV like the first.

mod create;
mod delete;
mod error;
mod events;
mod expand;
mod in_use;
mod lost;
mod mark;
mod ownership;
mod source;
mod status;
mod watch;
mod written;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{StreamExt as _, stream};
use jiff::Timestamp;
use kube::Api;
use tokio::sync::{mpsc, watch as channel};
use tokio_stream::wrappers::{ReceiverStream, UnboundedReceiverStream};
use topolvm_api::{ApiFlavor, LogicalVolume};
use topolvm_kube::{LogicalVolumeWriter, ReconcileMetrics, WorkQueueConfig, reconcile_changes, watch_and_reconcile};
use topolvm_runtime::{Backoff, CancellationToken, error_chain};

use crate::capacity::Pools;
use crate::lvmd::Lvmd;

pub use error::Error;
pub(crate) use events::Events;
pub use in_use::FindDeviceUses;
pub use lost::LostVolumes;
use lost::Verdicts;
use written::Written;

const WORK_QUEUE: WorkQueueConfig = WorkQueueConfig {
    // lvmd itself does one change per volume group: with a few that wait for their turn, it never waits for the next wish
    concurrency: 4,
    // lvmd's return ends the pauses early
    backoff: Backoff::new(Duration::from_millis(200), Duration::from_secs(30)),
};
/// Who writes, as `managedFields` shows it.
const FIELD_MANAGER: &str = "topolvm-node";

/// What the reconciler is told by the other parts of the agent.
#[derive(Debug)]
pub struct Signals {
    /// lvmd is back, so that what failed while it was away can be done.
    pub lvmd_returns: mpsc::Receiver<()>,
    /// What lvmd says, whenever something has changed in its volume groups.
    pub pools: channel::Receiver<Pools>,
    /// The ids of volumes that have gone from a pod, so that they may be removed now.
    pub unpublished: mpsc::UnboundedReceiver<String>,
    /// Shows how many volumes are lost.
    pub lost: LostVolumes,
}

/// The reconciler of a node.
#[derive(Debug)]
pub struct Reconciler {
    flavor: ApiFlavor,
    node: String,
    api: Api<LogicalVolume>,
    lvmd: Lvmd,
    written: Written,
    events: Events,
    now: fn() -> Timestamp,
    /// UIDs of objects for which an LV may have been made, whatever the answer was.
    attempted: Mutex<HashSet<String>>,
    /// The wish for growth that a failure in the status answers, by UID.
    answered: Mutex<HashMap<String, String>>,
    /// Whether LVs are lost.
    verdicts: Mutex<Verdicts>,
    device_uses: Option<FindDeviceUses>,
}

impl Reconciler {
    /// The reconciler of the objects of `node`. `now` is the clock of the conditions that it writes.
    pub fn new(flavor: ApiFlavor, node: String, client: kube::Client, lvmd: Lvmd, now: fn() -> Timestamp) -> Self {
        Self {
            flavor,
            events: Events::new(flavor, &node, client.clone()),
            node,
            api: Api::all_with(client, &flavor),
            lvmd,
            now,
            written: Written::default(),
            attempted: Mutex::default(),
            answered: Mutex::default(),
            verdicts: Mutex::default(),
            device_uses: None,
        }
    }

    /// Removes no LV whose device node is found to be in use.
    #[must_use]
    pub fn finding_uses(self, device_uses: FindDeviceUses) -> Self {
        Self { device_uses: Some(device_uses), ..self }
    }

    /// Watches the objects of this node, caches them with `writer`, and reconciles each whenever it changes, after a
    /// failure, and when one of the signals says so. Ends with `shutdown`.
    pub async fn run(
        self: Arc<Self>,
        writer: LogicalVolumeWriter,
        signals: Signals,
        metrics: ReconcileMetrics,
        shutdown: CancellationToken,
    ) -> anyhow::Result<()> {
        topolvm_kube::wait_until_reachable(&self.api.clone().into_client(), &shutdown).await;
        let selecting = watch::selection(&self.api, &self.node);
        let Some(selection) = shutdown.run_until_cancelled(selecting).await else {
            return Ok(());
        };
        let own = writer.as_reader();
        let all = own.clone();
        let Signals { lvmd_returns, pools, unpublished, lost } = signals;
        let after_return = ReceiverStream::new(lvmd_returns).flat_map(move |()| stream::iter(all.names()));
        let all = own.clone();
        let removable = UnboundedReceiverStream::new(unpublished).filter_map(move |id| {
            let volume = all.find(&id).filter(|volume| volume.is_deleting());
            std::future::ready(volume.map(|volume| volume.name().to_owned()))
        });
        let (changed, changes) = mpsc::unbounded_channel();
        let queue = stream::select(UnboundedReceiverStream::new(changes), stream::select(after_return, removable));
        let step = async |name: String| match own.get(&name) {
            Some(volume) => metrics.observe("logicalvolume", self.reconcile(volume)).await,
            None => Ok(()),
        };
        // A volume group that hangs holds up no volumes of others
        let class = |name: &String| own.get(name).map(|volume| volume.spec.device_class.clone());
        let queue = queue.take_until(shutdown.clone().cancelled_owned());
        let working = reconcile_changes(queue, WORK_QUEUE, class, step, log_failure);
        let comparing = shutdown.run_until_cancelled(self.follow_lost(&own, pools, &lost, &changed));
        let watching =
            watch::follow(self.api.clone(), selection, &self.node, writer, changed.clone(), shutdown.clone());
        Box::pin(watch_and_reconcile(watching, async {
            tokio::join!(working, comparing);
        }))
        .await
    }

    /// Does what one object asks for.
    pub async fn reconcile(&self, seen: Arc<LogicalVolume>) -> Result<(), Error> {
        let volume = self.written.latest(seen);
        if volume.spec.node_name != self.node {
            return Ok(());
        }
        if self.is_pending_deletion(&volume) {
            if volume.is_deleting() {
                tracing::warn!(
                    volume = volume.name(),
                    "the object is to be deleted but marked as pending; remove the annotation to let it go"
                );
            }
            return Ok(());
        }
        if volume.is_deleting() {
            return self.delete(&volume).await;
        }
        let volume = self.mark(volume).await?;
        let made = if volume.volume_id().is_some() { Some(volume) } else { self.create(&volume).await? };
        match made {
            Some(volume) => {
                self.report_lost(&volume).await?;
                self.expand(&volume).await
            }
            None => Ok(()),
        }
    }

    /// Nothing is left to be known of an object that is gone.
    fn forget(&self, volume: &LogicalVolume) {
        self.written.forget(volume);
        self.lock_answered().remove(volume.uid());
        self.lock_attempted().remove(volume.uid());
        self.lock_verdicts().remove(volume.uid());
    }

    fn lock_verdicts(&self) -> MutexGuard<'_, Verdicts> {
        self.verdicts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_attempted(&self) -> MutexGuard<'_, HashSet<String>> {
        self.attempted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_answered(&self) -> MutexGuard<'_, HashMap<String, String>> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody else decides what becomes of the object.
    fn is_pending_deletion(&self, volume: &LogicalVolume) -> bool {
        let annotations = volume.metadata.annotations.as_ref();
        annotations.is_some_and(|annotations| annotations.contains_key(self.flavor.pending_deletion()))
    }
}

/// The one place where a failure is logged.
fn log_failure(volume: &String, error: &Error, pause: Duration) {
    tracing::warn!(
        volume,
        error = error_chain(error),
        again_in_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX),
        "cannot reconcile the LogicalVolume"
    );
}
