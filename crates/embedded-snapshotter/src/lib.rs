//! Creates and deletes snapshots for VolumeSnapshotContents and VolumeGroupSnapshotContents, as external-snapshotter
//! does: inside of the controller, and without a socket. snapshot-controller, which makes the contents, is another
//! program.
//!
//! A watch shows for which contents something is to be done. Each attempt reads the content from the API server, and
//! writes to a version of it before it calls the driver, so that it never acts on an old content. Without the
//! CustomResourceDefinitions of a kind it waits for them.
//!
//! Both kinds are handled by the same code: `content` says where they differ, `snapshot_content` and `group_snapshot`
//! how. `content_step`, `content_changes`, `driver_snapshot`, `snapshot_request` and `secret_reference` decide, and do
//! no I/O.

mod args;
mod attempt;
mod content;
mod content_changes;
mod content_events;
mod content_step;
mod content_watch;
mod creation;
mod deletion;
mod driver_snapshot;
mod error;
mod group_content;
mod group_snapshot;
mod objects;
mod pending_contents;
mod secret_reference;
mod snapshot_content;
mod snapshot_request;

use std::sync::Arc;
use std::time::Duration;

use csi_calls::{CsiController, CsiGroupController};
use jiff::Timestamp;
use kube::Client;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::UnboundedReceiverStream;
use topolvm_api::{ApiFlavor, SnapshotContent};
use topolvm_kube::{EventPublisher, ReconcileMetrics, WorkQueueConfig, reconcile_changes, watch_and_reconcile};
use topolvm_proto::csi::controller_server::Controller;
use topolvm_proto::csi::group_controller_server::GroupController;
use topolvm_runtime::grpc::RpcMetrics;
use topolvm_runtime::{Backoff, CancellationToken, error_chain};

pub use args::SnapshotterArgs;

use attempt::{Attempt, End};
use content::{Content, Csi};
use content_events::ContentEvents;
use content_watch::watch_contents;
use error::AttemptError;
use group_content::GroupSnapshotContent;
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
    /// The CSI GroupController service, which is called in this process.
    pub group_controller: Arc<dyn GroupController>,
    /// Becomes true when the driver has listed what it needs to answer calls.
    pub driver_ready: watch::Receiver<bool>,
    /// The publisher of Events about contents.
    pub events: EventPublisher,
    /// The metric of reconciles.
    pub metrics: ReconcileMetrics,
    /// The metrics of calls.
    pub calls: RpcMetrics,
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

    /// Creates and deletes snapshots as the contents request it when the driver is ready, until `term` is cancelled.
    /// What runs then is dropped wherever it is: all of it can be repeated.
    pub async fn run(self, term: CancellationToken) -> anyhow::Result<()> {
        let args = self.args.clone();
        let snapshots = SnapshotNames {
            prefix: args.snapshotter_snapshot_name_prefix,
            uid_length: args.snapshotter_snapshot_name_uuid_length,
        };
        let groups = SnapshotNames {
            prefix: args.snapshotter_groupsnapshot_name_prefix,
            uid_length: args.snapshotter_groupsnapshot_name_uuid_length,
        };
        let snapshots = Box::pin(self.handle_contents::<SnapshotContent>(snapshots, &term));
        let groups = Box::pin(self.handle_contents::<GroupSnapshotContent>(groups, &term));
        let mut driver_ready = self.context.driver_ready.clone();
        let working = async {
            // An error only when the process ends
            if driver_ready.wait_for(|ready| *ready).await.is_err() {
                return Ok(());
            }
            tokio::try_join!(snapshots, groups).map(drop)
        };
        term.run_until_cancelled(working).await.unwrap_or(Ok(()))
    }

    /// Handles the contents of one kind.
    async fn handle_contents<C: Content>(&self, names: SnapshotNames, term: &CancellationToken) -> anyhow::Result<()> {
        let (SnapshotterContext { client, flavor, .. }, args) = (self.context.clone(), &self.args);
        let (sender, changed) = mpsc::unbounded_channel();
        let objects = Objects { client, driver: flavor.driver_name() };
        let mut pending = PendingContents::<C>::new(objects.driver, sender);
        let watching = watch_contents(objects.contents(), term.clone(), move |event| pending.apply(event));
        let attempt = self.attempt(objects, names);
        let metrics = &self.context.metrics;
        let reconcile = async |content: String| {
            let mut end = End::Done;
            let measured = async {
                end = attempt.run::<C>(&content).await?;
                Ok(())
            };
            metrics.observe(C::NAMES.controller, measured).await.map_err(Retry::Failed)?;
            if end == End::NotReady { Err(Retry::NotReady) } else { Ok(()) }
        };
        let (kind, what) = (C::NAMES.content, C::NAMES.what);
        let failed = |content: &String, retry: &Retry, again_in: Duration| match retry {
            Retry::Failed(error) => {
                let error = error_chain(error);
                tracing::warn!(content, error, ?again_in, "cannot handle a {kind}; trying again");
            }
            Retry::NotReady => tracing::info!(content, ?again_in, "a {what} is not ready; checking it again"),
        };
        let backoff = Backoff::new(args.snapshotter_retry_interval_start, args.snapshotter_retry_interval_max);
        let config = WorkQueueConfig { concurrency: args.snapshotter_worker_threads.get(), backoff };
        let changed = UnboundedReceiverStream::new(changed);
        let reconciling = reconcile_changes(changed, config, |_| (), reconcile, failed);
        watch_and_reconcile(watching, reconciling).await
    }

    fn attempt(&self, objects: Objects, names: SnapshotNames) -> Attempt {
        let SnapshotterContext { controller, group_controller, events, calls, now, .. } = self.context.clone();
        let timeout = self.args.snapshotter_timeout;
        let csi = Csi {
            controller: CsiController::new(controller, timeout, calls.clone()),
            groups: CsiGroupController::new(group_controller, timeout, calls),
        };
        Attempt { objects, csi, names, events: ContentEvents(events), now }
    }
}

#[cfg(test)]
mod tests;
