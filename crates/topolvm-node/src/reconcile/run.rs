//! Runs the reconciler: the watch of this node's LogicalVolumes, the work queue, and the triggers that requeue
//! objects.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use lvmd_client::DeviceClasses;
use tokio::sync::{mpsc, watch as channel};
use tokio_stream::wrappers::{ReceiverStream, UnboundedReceiverStream};
use topolvm_kube::{LogicalVolumeWriter, ReconcileMetrics, WorkQueueConfig, reconcile_changes, watch_and_reconcile};
use topolvm_runtime::{Backoff, CancellationToken, error_chain};

use super::{ReconcileError, Reconciler, VolumeGauges, watch};

/// Concurrency for each device class, and the back-off of retries.
const WORK_QUEUE: WorkQueueConfig = WorkQueueConfig {
    // lvmd does one change per volume group at a time, and up to eight that wait for its lock together: with twice as
    // many there is always a next batch
    concurrency: 16,
    // lvmd's return ends the pauses early
    backoff: Backoff::new(Duration::from_millis(200), Duration::from_secs(30)),
};

/// Triggers from other parts of the agent that requeue objects.
#[derive(Debug)]
pub struct Triggers {
    /// lvmd is back, so that what failed while it was away can be retried.
    pub lvmd_returns: mpsc::Receiver<()>,
    /// State of the device classes, sent when something has changed in lvmd's volume groups.
    pub device_classes: channel::Receiver<DeviceClasses>,
    /// Ids of volumes that were published or unpublished, so that they may be removed now, or have other pods, and of
    /// those of which limits of I/O have gone.
    pub published: mpsc::UnboundedReceiver<String>,
    /// UIDs of pods that have changed; none where pods are not read.
    pub pods: mpsc::UnboundedReceiver<String>,
    /// Gauges of volumes that are not as they should be.
    pub gauges: VolumeGauges,
}

impl Reconciler {
    /// Watches the objects of this node, caches them with `writer`, and reconciles each whenever it changes, after a
    /// failure, and when it is triggered. Ends with `shutdown`.
    pub async fn run(
        self: Arc<Self>,
        writer: LogicalVolumeWriter,
        signals: Triggers,
        metrics: ReconcileMetrics,
        shutdown: CancellationToken,
    ) -> anyhow::Result<()> {
        topolvm_kube::wait_until_reachable(&self.clients.api.clone().into_client(), &shutdown).await;
        let selecting = watch::choose_selection(&self.clients.api, &self.clients.node, WORK_QUEUE.backoff);
        let Some(selection) = shutdown.run_until_cancelled(selecting).await else {
            return Ok(());
        };
        let own = writer.as_reader();
        let all = own.clone();
        let Triggers { lvmd_returns, device_classes, published, pods, gauges } = signals;
        let after_return = ReceiverStream::new(lvmd_returns).flat_map(move |()| stream::iter(all.names()));
        let reconciler = Arc::clone(&self);
        let of_pods = UnboundedReceiverStream::new(pods);
        let of_pods = of_pods.flat_map(move |pod| stream::iter(reconciler.writer.io.volumes_of_pod(&pod)));
        let all = own.clone();
        let used = stream::select(UnboundedReceiverStream::new(published), of_pods)
            .filter_map(move |id| std::future::ready(all.find(&id).map(|volume| volume.name().to_owned())));
        let (changed, changes) = mpsc::unbounded_channel();
        let queue = stream::select(UnboundedReceiverStream::new(changes), stream::select(after_return, used));
        let step = async |name: String| match own.get(&name) {
            Some(volume) => metrics.observe("logicalvolume", self.reconcile(volume)).await,
            None => Ok(()),
        };
        // The concurrency key is the device class: a volume group that hangs holds up no volumes of others
        let class = |name: &String| own.get(name).map(|volume| volume.spec.device_class.clone());
        let queue = queue.take_until(shutdown.clone().cancelled_owned());
        let working = reconcile_changes(queue, WORK_QUEUE, class, step, log_failure);
        let comparing = shutdown.run_until_cancelled(self.comparison.run(&own, device_classes, &gauges, &changed));
        let watching = watch::follow(
            self.clients.api.clone(),
            selection,
            &self.clients.node,
            writer,
            changed.clone(),
            shutdown.clone(),
        );
        Box::pin(watch_and_reconcile(watching, async {
            tokio::join!(working, comparing);
        }))
        .await
    }
}

/// Logs a failure of an object. No other place does.
fn log_failure(volume: &String, error: &ReconcileError, pause: Duration) {
    tracing::warn!(
        volume,
        error = error_chain(error),
        again_in_ms = u64::try_from(pause.as_millis()).unwrap_or(u64::MAX),
        "cannot reconcile the LogicalVolume"
    );
}
