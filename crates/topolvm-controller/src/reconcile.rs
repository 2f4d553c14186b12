//! What the controller does besides answering CSI calls: it tidies up after Nodes, claims and volumes, and nudges kubelet. One replica at
//! a time does this, see `leader`.
//!
//! Watches say where to look. What is deleted or let go is first read from the API server, and each write names the object that it is
//! meant for, so that an old view or a second controller cannot hit another object of the same name.

mod claim_finalizer;
mod claim_informer;
mod error;
mod events;
mod filesystem_resize;
mod finalizers;
#[cfg(test)]
mod harness;
mod node_deletion;
mod stale_volumes;
mod work_queue;

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use jiff::Timestamp;
use kube::Client;
use topolvm_api::ApiFlavor;
use topolvm_kube::{ReconcileMetrics, watch_and_work};
use topolvm_runtime::CancellationToken;

use claim_informer::Claims;
use events::Events;
use filesystem_resize::ResizeNudge;

use crate::node_informer::Nodes;
use crate::volume_informer::VolumeWatch;

/// What an administrator decides about the controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    /// Leave claims and volumes of a deleted Node alone.
    pub(crate) skip_node_finalize: bool,
    /// Claims carry our finalizer on purpose.
    pub(crate) claim_finalizer: bool,
    /// A volume that has been leaving for so long is stale.
    pub(crate) stale_period: Duration,
    /// How often to look for stale volumes.
    pub(crate) cleanup_interval: Duration,
}

/// The controllers.
#[derive(Clone)]
pub(crate) struct Controllers {
    pub(crate) client: Client,
    pub(crate) flavor: ApiFlavor,
    pub(crate) settings: Settings,
    pub(crate) nodes: Nodes,
    pub(crate) volumes: VolumeWatch,
    /// Who writes Events.
    pub(crate) instance: String,
    /// Where each reconcile of each of them counts.
    pub(crate) metrics: ReconcileMetrics,
    /// The wall clock.
    pub(crate) now: fn() -> Timestamp,
}

impl Controllers {
    /// Runs them until `term` is cancelled.
    pub(crate) async fn run(self, term: CancellationToken) -> anyhow::Result<()> {
        let Self { client, flavor, settings, nodes, volumes, instance, metrics, now } = self;
        let events = Events::new(client.clone(), instance);
        let (claims, sources) = Claims::new(client.clone(), flavor, settings.claim_finalizer, term.clone());
        let nudge = ResizeNudge { client: client.clone(), volumes: volumes.clone(), metrics: metrics.clone(), now };
        let finalizer = claim_finalizer::ClaimFinalizer {
            client: client.clone(),
            flavor,
            is_kept: settings.claim_finalizer,
            events: events.clone(),
            metrics: metrics.clone(),
        };
        let deletion = node_deletion::NodeDeletion {
            client: client.clone(),
            flavor,
            skip: settings.skip_node_finalize,
            claims: claims.clone(),
            events: events.clone(),
            metrics: metrics.clone(),
        };
        let stale = stale_volumes::StaleVolumes {
            client,
            flavor,
            period: settings.stale_period,
            interval: settings.cleanup_interval,
            volumes,
            events,
            metrics,
            now,
        };
        // Dropped where they stand when the term ends: everything they do can be done again
        let working = async {
            tokio::join!(
                nudge.run(sources.growths),
                finalizer.run(claims.clone(), sources.finalizable),
                Arc::new(deletion).run(nodes),
                stale.run(),
            )
        };
        watch_and_work(sources.watch, Box::pin(term.run_until_cancelled(working).map(drop))).await
    }
}

#[cfg(test)]
mod tests;
