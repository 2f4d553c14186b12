//! Waiting for the Lease, and taking it.
//!
//! A watch of the one Lease tells when it is given back. Should the watch be late or forbidden, the Lease is read again when it would
//! have run out.

use futures::{Stream, StreamExt as _, pin_mut};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::api::{ObjectMeta, PostParams};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event, watcher};
use tokio::time::{Instant, timeout_at};
use topolvm_runtime::error_chain;

use super::{Election, Error, Timing, lease};

/// What the Lease said, and when this process saw it change to that.
struct Seen {
    spec: LeaseSpec,
    since: Instant,
}

impl Seen {
    /// Whether the Lease has changed.
    fn update(seen: &mut Option<Self>, lease: &Lease) -> bool {
        let spec = lease.spec.clone().unwrap_or_default();
        let is_new = seen.as_ref().is_none_or(|seen| seen.spec != spec);
        if is_new {
            *seen = Some(Self { spec, since: Instant::now() });
        }
        is_new
    }

    /// When the Lease runs out. One that nobody holds has run out when it was seen.
    fn end(&self, timing: &Timing) -> Instant {
        if lease::is_free(&self.spec) { self.since } else { self.since + lease::duration(&self.spec, timing) }
    }

    fn has_run_out(&self, timing: &Timing) -> bool {
        self.end(timing) <= Instant::now()
    }
}

impl Election {
    /// Waits until this process holds the Lease, and returns it with a time from which on it holds at the earliest.
    pub(super) async fn acquire(&self) -> (Lease, Instant) {
        let only_this = watcher::Config::default().fields(&format!("metadata.name={}", self.name));
        let changes = watcher(self.api.clone(), only_this).default_backoff();
        pin_mut!(changes);
        let mut seen = None;
        loop {
            let started = Instant::now();
            let again = match self.try_to_take(&mut seen).await {
                Ok(Some(lease)) => return (lease, started),
                Ok(None) => self.end_of(seen.as_ref()),
                Err(error) => {
                    if !error.is_conflict() {
                        tracing::warn!(
                            error = error_chain(&error),
                            "cannot take part in the leader election; trying again"
                        );
                    }
                    Instant::now() + self.timing.retry_period
                }
            };
            self.wait(again, &mut seen, &mut changes).await;
        }
    }

    /// Takes the Lease if nobody holds it any more.
    async fn try_to_take(&self, seen: &mut Option<Seen>) -> Result<Option<Lease>, Error> {
        let Some(found) = self.in_time(self.limit(), "read", self.api.get_opt(&self.name)).await? else {
            let new =
                Lease { metadata: ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() }, spec: None };
            let new = lease::taken(new, &self.identity, &self.timing, (self.now)());
            let params = PostParams::default();
            let created = self.api.create(&params, &new);
            return self.in_time(self.limit(), "create", created).await.map(Some);
        };
        Seen::update(seen, &found);
        let is_ours = lease::is_held_by(&found, &self.identity);
        if !is_ours && seen.as_ref().is_some_and(|seen| !seen.has_run_out(&self.timing)) {
            return Ok(None);
        }
        self.replace(&lease::taken(found, &self.identity, &self.timing, (self.now)())).await.map(Some)
    }

    fn end_of(&self, seen: Option<&Seen>) -> Instant {
        seen.map_or_else(Instant::now, |seen| seen.end(&self.timing))
    }

    /// Waits until `again`, which each renewal of the holder puts off, or until the Lease is free.
    async fn wait(
        &self,
        mut again: Instant,
        seen: &mut Option<Seen>,
        changes: &mut (impl Stream<Item = watcher::Result<Event<Lease>>> + Unpin),
    ) {
        loop {
            match timeout_at(again, changes.next()).await {
                Ok(Some(Ok(Event::Apply(lease) | Event::InitApply(lease)))) => {
                    if Seen::update(seen, &lease) {
                        again = self.end_of(seen.as_ref());
                    }
                }
                Ok(Some(Ok(Event::Delete(_)))) => return,
                Ok(Some(Ok(Event::Init | Event::InitDone))) => {}
                Ok(Some(Err(error))) => {
                    tracing::debug!(error = error_chain(&error), "cannot watch the Lease");
                }
                // The stream of a watcher does not end; were it to, the time decides
                Ok(None) => return tokio::time::sleep_until(again).await,
                Err(_elapsed) => return,
            }
        }
    }
}
