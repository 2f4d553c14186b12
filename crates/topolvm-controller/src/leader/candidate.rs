//! Waits for the Lease, and acquires it.
//!
//! A watch of the one Lease shows its release. In case the watch is late or forbidden, the Lease is also read when it
//! would have expired.

use futures::{Stream, StreamExt as _, pin_mut};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::time::{Instant, timeout_at};
use topolvm_runtime::error_chain;

use super::lease_client::LeaseError;
use super::{Election, ElectionTiming, lease};

/// The Lease as this process observed it last, and when it saw it change to that.
struct ObservedLease {
    spec: LeaseSpec,
    since: Instant,
}

impl ObservedLease {
    /// Keeps the Lease as the observed one, and returns whether it has changed.
    fn update(observed: &mut Option<Self>, lease: &Lease) -> bool {
        let spec = lease.spec.clone().unwrap_or_default();
        let is_new = observed.as_ref().is_none_or(|observed| observed.spec != spec);
        if is_new {
            *observed = Some(Self { spec, since: Instant::now() });
        }
        is_new
    }

    /// Returns when the Lease expires. One without a holder has expired when it was observed.
    fn expires_at(&self, timing: &ElectionTiming) -> Instant {
        if lease::is_free(&self.spec) { self.since } else { self.since + lease::duration(&self.spec, timing) }
    }

    fn is_expired(&self, timing: &ElectionTiming) -> bool {
        self.expires_at(timing) <= Instant::now()
    }
}

impl Election {
    /// Waits until this process holds the Lease, and returns it with the time at which the request for it began.
    pub(super) async fn acquire(&self) -> (Lease, Instant) {
        let only_this = watcher::Config::default().fields(&format!("metadata.name={}", self.lease.name));
        let changes = watcher(self.lease.api.clone(), only_this).default_backoff();
        pin_mut!(changes);
        let mut observed = None;
        loop {
            let started = Instant::now();
            let retry_at = match self.try_acquire(&mut observed).await {
                Ok(Some(lease)) => return (lease, started),
                Ok(None) => self.expires_at(observed.as_ref()),
                Err(error) => {
                    if !error.is_conflict() {
                        tracing::warn!(
                            error = error_chain(&error),
                            "cannot take part in the leader election; trying again"
                        );
                    }
                    Instant::now() + self.lease.timing.retry_period
                }
            };
            self.wait_until_free(retry_at, &mut observed, &mut changes).await;
        }
    }

    /// Acquires the Lease if it has no holder any more.
    async fn try_acquire(&self, observed: &mut Option<ObservedLease>) -> Result<Option<Lease>, LeaseError> {
        let Some(found) = self.lease.read().await? else { return self.lease.create().await.map(Some) };
        ObservedLease::update(observed, &found);
        let is_ours = lease::is_held_by(&found, &self.lease.identity);
        if !is_ours && observed.as_ref().is_some_and(|observed| !observed.is_expired(&self.lease.timing)) {
            return Ok(None);
        }
        self.lease
            .replace(&lease::acquired(found, &self.lease.identity, &self.lease.timing, (self.lease.now)()))
            .await
            .map(Some)
    }

    fn expires_at(&self, observed: Option<&ObservedLease>) -> Instant {
        observed.map_or_else(Instant::now, |observed| observed.expires_at(&self.lease.timing))
    }

    /// Waits until `retry_at`, which each renewal of the holder puts off, or until the Lease is free.
    async fn wait_until_free(
        &self,
        mut retry_at: Instant,
        observed: &mut Option<ObservedLease>,
        changes: &mut (impl Stream<Item = watcher::Result<Event<Lease>>> + Unpin),
    ) {
        loop {
            match timeout_at(retry_at, changes.next()).await {
                Ok(Some(Ok(Event::Apply(lease) | Event::InitApply(lease)))) => {
                    if ObservedLease::update(observed, &lease) {
                        retry_at = self.expires_at(observed.as_ref());
                    }
                }
                Ok(Some(Ok(Event::Delete(_)))) => return,
                Ok(Some(Ok(Event::Init | Event::InitDone))) => {}
                Ok(Some(Err(error))) => {
                    tracing::debug!(error = error_chain(&error), "cannot watch the Lease");
                }
                // The stream of a watcher does not end; were it to, the time decides
                Ok(None) => return tokio::time::sleep_until(retry_at).await,
                Err(_elapsed) => return,
            }
        }
    }
}
