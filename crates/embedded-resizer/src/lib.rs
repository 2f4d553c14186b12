//! Expands and modifies the volumes of claims, as external-resizer does: inside of the controller, with its watch of
//! claims, and without a socket.
//!
//! Claims that request what they do not have come from the watch. Each attempt reads the PersistentVolume, and writes
//! to a version of the claim before it calls the driver, so that it never acts on an old claim. What the driver calls
//! infeasible is tried again after the longest pause, and at once when the claim changes.
//!
//! `claim_requests`, `expansion_step`, `modification_step`, `claim_changes` and `conditions` decide, and do no I/O.

mod args;
mod attempt;
mod call_failure;
mod claim_changes;
mod claim_requests;
mod claim_sizes;
mod conditions;
mod error;
mod expansion;
mod expansion_step;
mod modification;
mod modification_step;
mod objects;
mod pending_claims;
mod slow_retries;
mod volume_capability;

use std::sync::Arc;
use std::time::Duration;

use csi_calls::CsiController;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::Client;
use kube::runtime::watcher::Event;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_stream::wrappers::UnboundedReceiverStream;
use topolvm_api::ApiFlavor;
use topolvm_kube::{EventPublisher, ReconcileMetrics, WorkQueueConfig, reconcile_changes};
use topolvm_proto::csi::controller_server::Controller;
use topolvm_runtime::grpc::RpcMetrics;
use topolvm_runtime::{Backoff, CancellationToken, error_chain};

pub use args::ResizerArgs;

use attempt::{Attempt, End};
use error::OperationError;
use objects::Objects;
use pending_claims::{Operation, PendingClaims, Task};
use slow_retries::send_when_due;

/// The dependencies of the resizer.
#[expect(missing_debug_implementations, reason = "the client has none")]
#[derive(Clone)]
pub struct ResizerContext {
    /// The client of the API server.
    pub client: Client,
    /// The API group.
    pub flavor: ApiFlavor,
    /// The CSI Controller service, which is called in this process.
    pub controller: Arc<dyn Controller>,
    /// Becomes true when the driver has listed what it needs to answer calls.
    pub driver_ready: watch::Receiver<bool>,
    /// The publisher of Events about claims.
    pub events: EventPublisher,
    /// The metric of reconciles.
    pub metrics: ReconcileMetrics,
    /// The metrics of calls.
    pub calls: RpcMetrics,
    /// The wall clock.
    pub now: fn() -> Timestamp,
}

/// The controller that expands and modifies volumes. Clones share the claims that it knows.
#[expect(missing_debug_implementations, reason = "the client in it has none")]
#[derive(Clone)]
pub struct Resizer {
    context: ResizerContext,
    args: ResizerArgs,
    claims: PendingClaims,
}

impl Resizer {
    /// Makes the controller, which knows no claim yet.
    #[must_use]
    pub fn new(context: ResizerContext, args: ResizerArgs) -> Self {
        Self { context, args, claims: PendingClaims::default() }
    }

    /// Returns the function that takes the events of a watch of all claims.
    pub fn subscriber(&self) -> impl FnMut(&Event<PersistentVolumeClaim>) + Send + use<> {
        let claims = self.claims.clone();
        move |event| claims.apply(event)
    }

    /// Expands and modifies volumes as claims request it when the driver is ready, until `term` is cancelled. What runs
    /// then is dropped wherever it is: all of it can be repeated.
    pub async fn run(self, term: CancellationToken) {
        let Self { context, args, claims } = self;
        let ResizerContext { client, flavor, controller, mut driver_ready, events, metrics, calls, now } = context;
        let (sender, changed) = mpsc::unbounded_channel();
        let (delayed, due) = mpsc::unbounded_channel();
        claims.connect(sender.clone());
        let attempt = Attempt {
            objects: Objects { client, driver: flavor.driver_name() },
            csi: CsiController::new(controller, args.resizer_timeout, calls),
            claims,
            events,
            delayed,
            infeasible_pause: args.resizer_retry_interval_max,
            now,
        };
        let workers = Semaphore::new(args.resizer_workers.get());
        let reconcile = async |task: Task| {
            // Never closed
            let _permit = workers.acquire().await.ok();
            run_task(&attempt, &metrics, &task).await
        };
        let failed = |task: &Task, error: &OperationError, pause: Duration| {
            let (claim, operation) = (&task.claim, task.operation);
            let error = error_chain(error);
            tracing::warn!(%claim, ?operation, error, again_in = ?pause, "cannot change a volume; trying again");
        };
        let backoff = Backoff::new(args.resizer_retry_interval_start, args.resizer_retry_interval_max);
        // Operations on one claim wait for each other; the number of all of them is limited by the semaphore
        let config = WorkQueueConfig { concurrency: 1, backoff };
        let changed = UnboundedReceiverStream::new(changed);
        let reconciling = reconcile_changes(changed, config, |task| task.claim.clone(), reconcile, failed);
        let working = async {
            // An error only when the process ends
            if driver_ready.wait_for(|ready| *ready).await.is_ok() {
                tokio::join!(reconciling, send_when_due(due, sender));
            }
        };
        Box::pin(term.run_until_cancelled(working)).await;
    }
}

/// Runs a task once, and measures it.
async fn run_task(attempt: &Attempt, metrics: &ReconcileMetrics, task: &Task) -> Result<(), OperationError> {
    let mut infeasible = None;
    let measured = async {
        let end = match task.operation {
            Operation::Expand => attempt.expand(task).await?,
            Operation::Modify => attempt.modify(task).await?,
        };
        match end {
            End::Done => Ok(()),
            End::Infeasible(call) => Err(OperationError::Call(infeasible.insert(call).clone())),
        }
    };
    let controller = match task.operation {
        Operation::Expand => "resize",
        Operation::Modify => "modify",
    };
    let ended = metrics.observe(controller, measured).await;
    match infeasible {
        Some(error) => {
            let (claim, operation) = (&task.claim, task.operation);
            let again_in = attempt.infeasible_pause;
            tracing::warn!(%claim, ?operation, %error, ?again_in, "the driver calls a request infeasible");
            Ok(())
        }
        None => ended,
    }
}

#[cfg(test)]
mod tests;
