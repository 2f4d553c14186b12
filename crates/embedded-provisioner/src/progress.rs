//! Memory of claims whose provisioning has begun. It lasts as long as the process, also while another process is the
//! leader: what was begun is continued, and what a failed call requires is done without another call.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use csi_calls::CallError;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::attempt::Attempt;

/// Memory of claims whose provisioning has begun, by UID. Clones share it.
#[derive(Clone, Default)]
pub struct Progress {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    claims: Mutex<HashMap<String, Stage>>,
    /// Changes with each refusal.
    refusals: watch::Sender<()>,
}

/// The stage of the provisioning of a claim.
#[derive(Clone, Default)]
pub(crate) enum Stage {
    /// An Event has reported that provisioning begins; there is no attempt.
    #[default]
    Begun,
    /// The outcome of this attempt is not known, or its PersistentVolume is not saved or not reported.
    Open(Arc<Attempt>),
    /// The call has failed, and no volume exists. What the failure requires is not done.
    Failed(Arc<Failure>),
    /// Another attempt waits.
    Refused(Refusal),
}

/// A failed call.
pub(crate) struct Failure {
    pub(crate) attempt: Arc<Attempt>,
    pub(crate) error: CallError,
    is_reported: AtomicBool,
}

/// A refusal that is the same as long as the StorageClass is.
#[derive(Clone)]
pub(crate) struct Refusal {
    until: Instant,
    class_uid: Option<String>,
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Progress").field("claims", &self.shared.claims.lock().len()).finish_non_exhaustive()
    }
}

impl Failure {
    pub(crate) const fn new(attempt: Arc<Attempt>, error: CallError) -> Self {
        Self { attempt, error, is_reported: AtomicBool::new(false) }
    }

    /// Returns whether an Event has reported it.
    pub(crate) fn is_reported(&self) -> bool {
        self.is_reported.load(Ordering::Relaxed)
    }

    /// Notes that an Event has reported it.
    pub(crate) fn set_reported(&self) {
        self.is_reported.store(true, Ordering::Relaxed);
    }
}

impl Progress {
    /// Returns the UIDs of all claims whose provisioning has begun.
    pub(crate) fn claims(&self) -> Vec<String> {
        self.shared.claims.lock().keys().cloned().collect()
    }

    /// Returns the stage of a claim, if its provisioning has begun.
    pub(crate) fn stage(&self, uid: &str) -> Option<Stage> {
        self.shared.claims.lock().get(uid).cloned()
    }

    /// Sets the stage of a claim.
    pub(crate) fn set(&self, uid: &str, stage: Stage) {
        self.shared.claims.lock().insert(uid.to_owned(), stage);
    }

    /// Lets the next attempt wait for this time, or for another StorageClass.
    pub(crate) fn refuse(&self, uid: &str, class_uid: Option<String>, pause: Duration) {
        self.set(uid, Stage::Refused(Refusal { until: Instant::now() + pause, class_uid }));
        self.shared.refusals.send_replace(());
    }

    /// Returns whether the next attempt with this StorageClass waits.
    pub(crate) fn is_refused(&self, uid: &str, class_uid: Option<&String>) -> bool {
        match self.shared.claims.lock().get(uid) {
            Some(Stage::Refused(refusal)) => refusal.until > Instant::now() && refusal.class_uid.as_ref() == class_uid,
            Some(Stage::Begun | Stage::Open(_) | Stage::Failed(_)) | None => false,
        }
    }

    /// Waits until refusals have ended, and returns the UIDs of their claims.
    pub(crate) async fn next_retries(&self) -> Vec<String> {
        let mut refusals = self.shared.refusals.subscribe();
        loop {
            refusals.mark_unchanged();
            let (ended, next) = self.end_refusals(Instant::now());
            if !ended.is_empty() {
                return ended;
            }
            tokio::select! {
                // The sender is this
                _ = refusals.changed() => {}
                () = sleep_until(next) => {}
            }
        }
    }

    /// Ends refusals whose time has come. Returns the UIDs of their claims, and the time at which the next one ends.
    fn end_refusals(&self, now: Instant) -> (Vec<String>, Option<Instant>) {
        let (mut ended, mut next) = (Vec::new(), None);
        for (uid, stage) in self.shared.claims.lock().iter_mut() {
            let Stage::Refused(Refusal { until, .. }) = stage else { continue };
            if *until <= now {
                ended.push(uid.clone());
                *stage = Stage::Begun;
            } else if next.is_none_or(|next| *until < next) {
                next = Some(*until);
            }
        }
        (ended, next)
    }

    /// Forgets a claim that is done with.
    pub(crate) fn forget(&self, uid: &str) {
        self.shared.claims.lock().remove(uid);
    }
}

/// Sleeps until this time; indefinitely without one.
async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
