//! Makes what the LogicalVolume objects of this node ask for, through lvmd, and writes what there is to their status.
//!
//! Each step can be broken off anywhere and done again: an LV has the UID of its object as name, and lvmd answers the
//! second wish for the same LV like the first.

mod create;
mod delete;
mod error;
mod events;
mod expand;
mod mark;
mod own;
mod ownership;
mod source;
mod status;
mod written;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use kube::Api;
use kube::runtime::controller::{Action, Config, Error as ControllerError};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::reflector::store::Writer;
use kube::runtime::{WatchStreamExt as _, applier};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use topolvm_api::{ApiFlavor, LogicalVolume};
use topolvm_runtime::{Backoff, Backoffs, CancellationToken, error_chain, kubernetes};

use crate::lvmd::Lvmd;
use crate::watching::Reconnect;

pub use error::Error;
use events::Events;
use written::Written;

/// How many objects are worked on at the same time; lvmd itself does one change per volume group.
const CONCURRENCY: u16 = 4;
/// Pauses between tries for one object. lvmd's return ends them early.
const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
/// Who writes, as `managedFields` shows it.
const FIELD_MANAGER: &str = "topolvm-node";

/// The reconciler of a node.
#[derive(Debug)]
pub struct Reconciler {
    flavor: ApiFlavor,
    node: String,
    api: Api<LogicalVolume>,
    lvmd: Lvmd,
    written: Written,
    /// By the object's name.
    failures: Backoffs<String>,
    events: Events,
    now: fn() -> Timestamp,
    /// UIDs of objects for which an LV may have been made, whatever the answer was.
    attempted: Mutex<HashSet<String>>,
    /// The wish for growth that a failure in the status answers, by UID.
    answered: Mutex<HashMap<String, String>>,
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
            failures: Backoffs::new(RETRY),
            attempted: Mutex::default(),
            answered: Mutex::default(),
        }
    }

    /// Watches the objects of this node, keeps `writer`'s store of them, and reconciles each whenever it changes, after a
    /// failure, and when a message on `lvmd_returns` says that lvmd is back. Ends with `shutdown`.
    pub async fn run(
        self: Arc<Self>,
        writer: Writer<LogicalVolume>,
        lvmd_returns: mpsc::Receiver<()>,
        shutdown: CancellationToken,
    ) -> anyhow::Result<()> {
        kubernetes::wait_until_reachable(&self.api.clone().into_client(), &shutdown).await;
        let selecting = own::selection(&self.api, &self.node);
        let Some(selection) = shutdown.run_until_cancelled(selecting).await else {
            return Ok(());
        };
        let (store, flavor) = (writer.as_reader(), self.flavor);
        let all = store.clone();
        let changed = own::events(self.api.clone(), selection, self.node.clone())
            .backoff(Reconnect::default())
            .reflect(writer)
            .touched_objects()
            .map_ok(move |volume| ObjectRef::from_obj_with(&volume, flavor));
        let after_return = ReceiverStream::new(lvmd_returns).flat_map(move |()| {
            let all = all.state().into_iter();
            stream::iter(all.map(move |volume| Ok(ObjectRef::from_obj_with(&*volume, flavor))))
        });
        // `Controller` makes its own watch and store; this one's are shared with the CSI service and filtered
        let queue = stream::select(changed, after_return).take_until(shutdown.cancelled_owned());
        let reconcile = |volume, reconciler: Arc<Self>| async move { reconciler.reconcile(volume).await }.boxed();
        let retry = |volume: Arc<LogicalVolume>, error: &Error, reconciler: Arc<Self>| reconciler.retry(&volume, error);
        let config = Config::default().concurrency(CONCURRENCY);
        applier(reconcile, retry, self, store, queue, config)
            .for_each(async |outcome| {
                if let Err(ControllerError::QueueError(error)) = outcome {
                    tracing::warn!(
                        error = format!("{:#}", anyhow::Error::from(error)),
                        "cannot watch LogicalVolumes; trying again"
                    );
                }
            })
            .await;
        Ok(())
    }

    /// Does what one object asks for.
    pub async fn reconcile(&self, seen: Arc<LogicalVolume>) -> Result<Action, Error> {
        let volume = self.written.latest(seen);
        let name = name(&volume).to_owned();
        self.step(volume).await?;
        self.failures.forget(&name);
        Ok(Action::await_change())
    }

    async fn step(&self, volume: Arc<LogicalVolume>) -> Result<(), Error> {
        if volume.spec.node_name != self.node {
            return Ok(());
        }
        if self.is_pending_deletion(&volume) {
            if volume.is_deleting() {
                tracing::warn!(
                    volume = name(&volume),
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
            Some(volume) => self.expand(&volume).await,
            None => Ok(()),
        }
    }

    /// Nothing is left to be known of an object that is gone.
    fn forget(&self, volume: &LogicalVolume) {
        self.written.forget(volume);
        self.lock_answered().remove(volume.uid());
        self.lock_attempted().remove(volume.uid());
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

    /// The one place where a failure is logged.
    fn retry(&self, volume: &LogicalVolume, error: &Error) -> Action {
        let pause = self.failures.fail(name(volume).to_owned());
        tracing::warn!(
            volume = name(volume),
            error = error_chain(error),
            again_in_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX),
            "cannot reconcile the LogicalVolume"
        );
        Action::requeue(pause)
    }
}

/// The object's name; objects that an API server has seen have one.
fn name(volume: &LogicalVolume) -> &str {
    volume.metadata.name.as_deref().unwrap_or_default()
}
