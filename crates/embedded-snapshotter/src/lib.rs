//! Creates and deletes snapshots for VolumeSnapshotContents, as external-snapshotter does: inside of the controller,
//! and without a socket. snapshot-controller, which makes the contents for VolumeSnapshots, is another program.
//!
//! A watch shows for which contents something is to be done. Each attempt reads the content from the API server, and
//! writes to a version of it before it calls the driver, so that it never acts on an old content. Without the
//! CustomResourceDefinitions of snapshots it waits for them.
//!
//! `content_step`, `content_changes`, `driver_snapshot`, `snapshot_request` and `secret_reference` decide, and do no
//! I/O.

mod annotations;
mod args;
mod attempt;
mod content_changes;
mod content_events;
mod content_step;
mod content_watch;
mod creation;
mod deletion;
mod driver_snapshot;
mod error;
mod objects;
mod pending_contents;
mod secret_reference;
mod snapshot_request;

use std::sync::Arc;
use std::time::Duration;

use csi_calls::CsiController;
use jiff::Timestamp;
use kube::Client;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use topolvm_api::ApiFlavor;
use topolvm_kube::{EventPublisher, ReconcileMetrics, WorkQueueConfig, reconcile_changes, watch_and_reconcile};
use topolvm_proto::csi::controller_server::Controller;
use topolvm_runtime::{Backoff, CancellationToken, error_chain};

pub use args::SnapshotterArgs;

use attempt::{Attempt, End};
use content_events::ContentEvents;
use content_watch::watch_contents;
use error::AttemptError;
use objects::Objects;
use pending_contents::PendingContents;
use snapshot_request::SnapshotNames;

/// The dependencies of the snapshotter.
#[expect(missing_debug_implementations, reason = "the client has none")]
#[derive(Clone)]
pub struct SnapshotterContext {
    /// The client of the API server.
    pub client: Client,
    /// The API group.
    pub flavor: ApiFlavor,
    /// The CSI Controller service, which is called in this process.
    pub controller: Arc<dyn Controller>,
    /// The publisher of Events about VolumeSnapshotContents.
    pub events: EventPublisher,
    /// The metric of reconciles.
    pub metrics: ReconcileMetrics,
    /// The wall clock.
    pub now: fn() -> Timestamp,
}

/// The controller that creates and deletes snapshots.
#[expect(missing_debug_implementations, reason = "the client in it has none")]
#[derive(Clone)]
pub struct Snapshotter {
    context: SnapshotterContext,
    args: SnapshotterArgs,
}

/// The end of an attempt that is followed by another one.
enum Retry {
    Failed(AttemptError),
    NotReady,
}

impl Snapshotter {
    /// Makes the controller.
    #[must_use]
    pub const fn new(context: SnapshotterContext, args: SnapshotterArgs) -> Self {
        Self { context, args }
    }

    /// Creates and deletes snapshots as VolumeSnapshotContents request it, until `term` is cancelled. What runs then is
    /// dropped wherever it is: all of it can be repeated.
    pub async fn run(self, term: CancellationToken) -> anyhow::Result<()> {
        let Self { context, args } = self;
        let SnapshotterContext { client, flavor, controller, events, metrics, now } = context;
        let (sender, changed) = mpsc::unbounded_channel();
        let objects = Objects { client, driver: flavor.driver_name() };
        let mut pending = PendingContents::new(objects.driver, sender);
        let watching = watch_contents(objects.contents(), term.clone(), move |event| pending.apply(event));
        let attempt = Attempt {
            objects,
            csi: CsiController::new(controller, args.snapshotter_timeout),
            names: SnapshotNames {
                prefix: args.snapshotter_snapshot_name_prefix,
                uid_length: args.snapshotter_snapshot_name_uuid_length,
            },
            events: ContentEvents(events),
            now,
        };
        let reconcile = async |content: String| {
            let mut end = End::Done;
            let measured = async {
                end = attempt.run(&content).await?;
                Ok(())
            };
            metrics.observe("snapshot", measured).await.map_err(Retry::Failed)?;
            if end == End::NotReady { Err(Retry::NotReady) } else { Ok(()) }
        };
        let failed = |content: &String, retry: &Retry, again_in: Duration| match retry {
            Retry::Failed(error) => {
                let error = error_chain(error);
                tracing::warn!(content, error, ?again_in, "cannot handle a VolumeSnapshotContent; trying again");
            }
            Retry::NotReady => tracing::info!(content, ?again_in, "a snapshot is not ready; checking it again"),
        };
        let backoff = Backoff::new(args.snapshotter_retry_interval_start, args.snapshotter_retry_interval_max);
        let config = WorkQueueConfig { concurrency: args.snapshotter_worker_threads.get(), backoff };
        let changed = UnboundedReceiverStream::new(changed);
        let reconciling = reconcile_changes(changed, config, |_| (), reconcile, failed);
        let working = Box::pin(watch_and_reconcile(watching, reconciling));
        term.run_until_cancelled(working).await.unwrap_or(Ok(()))
    }
}

#[cfg(test)]
mod tests;
