//! An attempt of an operation: what both operations share.

use std::time::Duration;

use csi_calls::{CallError, CsiController};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolumeClaim};
use kube::Resource as _;
use tokio::sync::mpsc;
use tokio::time::Instant;
use topolvm_kube::EventPublisher;
use topolvm_runtime::error_chain;

use crate::call_failure::CallFailure;
use crate::error::OperationError;
use crate::objects::Objects;
use crate::pending_claims::{Attempts, PendingClaims, Task};

/// Dependencies of an attempt.
#[derive(Clone)]
pub(crate) struct Attempt {
    pub(crate) objects: Objects,
    pub(crate) csi: CsiController,
    pub(crate) claims: PendingClaims,
    pub(crate) events: EventPublisher,
    /// Operations that are repeated at a fixed time.
    pub(crate) delayed: mpsc::UnboundedSender<(Task, Instant)>,
    /// The pause after an infeasible request.
    pub(crate) infeasible_pause: Duration,
    /// The wall clock.
    pub(crate) now: fn() -> Timestamp,
}

/// End of an attempt.
#[derive(Debug)]
pub(crate) enum End {
    /// There is nothing to do for now.
    Done,
    /// The driver has called the request infeasible: it is tried again later, at once only after a change.
    Infeasible(CallError),
}

impl Attempt {
    /// Records the meaning of a failed call, and has an infeasible one repeated later.
    pub(crate) fn record_failure(&self, task: &Task, claim: &PersistentVolumeClaim, failure: CallFailure) {
        let infeasible_until = (failure == CallFailure::Infeasible).then(|| Instant::now() + self.infeasible_pause);
        let attempts = Attempts { has_failed: failure != CallFailure::Uncertain, infeasible_until };
        self.record(task, claim, attempts);
        if let Some(time) = infeasible_until {
            // The receiver is dropped only when the term ends
            drop(self.delayed.send((task.clone(), time)));
        }
    }

    /// Records that a call has succeeded.
    pub(crate) fn record_success(&self, task: &Task, claim: &PersistentVolumeClaim) {
        self.record(task, claim, Attempts::default());
    }

    fn record(&self, task: &Task, claim: &PersistentVolumeClaim, attempts: Attempts) {
        self.claims.record(task, claim.metadata.uid.as_deref().unwrap_or_default(), attempts);
    }

    /// Publishes an Event about a claim.
    pub(crate) async fn publish_normal(
        &self,
        claim: &PersistentVolumeClaim,
        reason: &str,
        action: &str,
        note: impl Into<String>,
    ) {
        self.events.publish_normal(&reference(claim), reason, action, note.into()).await;
    }

    /// Publishes an error about a claim, if it is for users.
    pub(crate) async fn publish_error(
        &self,
        claim: &PersistentVolumeClaim,
        reason: &str,
        action: &str,
        error: &OperationError,
    ) {
        if error.is_for_users() {
            self.events.publish_warning(&reference(claim), reason, action, error_chain(error)).await;
        }
    }
}

/// Returns the reference to a claim. Its version would make each Event another one.
fn reference(claim: &PersistentVolumeClaim) -> ObjectReference {
    ObjectReference { resource_version: None, ..claim.object_ref(&()) }
}
