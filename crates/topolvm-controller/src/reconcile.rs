//! The controllers, which run in one replica at a time, see `leader`:
//!
//! - `node_deletion` deletes the claims and volumes of a deleted Node and takes the finalizer off it,
//! - `claim_finalizer` takes finalizers off claims,
//! - `stale_volumes` takes the finalizer off volumes whose node will not come back,
//! - `filesystem_resize` makes kubelet expand filesystems at once.
//!
//! Informers say where to look. What is deleted, or loses a finalizer, is first read from the API server, and each
//! write names the object that it is meant for, so that an old cache or a second controller cannot hit another object
//! of the same name.

mod args;
mod claim;
mod claim_finalizer;
mod claim_informer;
mod error;
mod events;
mod filesystem_resize;
#[cfg(test)]
mod harness;
mod node_deletion;
mod pending_resize;
mod pvc_finalizer;
mod stale_volumes;
mod work_queue;

use futures::FutureExt as _;
use jiff::Timestamp;
use kube::Client;
use topolvm_api::ApiFlavor;
use topolvm_kube::{ReconcileMetrics, watch_and_reconcile};
use topolvm_runtime::CancellationToken;

pub(crate) use args::ControllerSettings;
pub(crate) use events::EventPublisher;

use claim_finalizer::ClaimFinalizer;
use claim_informer::ClaimInformer;
use filesystem_resize::FilesystemResize;
use node_deletion::NodeDeletion;
use pvc_finalizer::FinalizerPolicy;
use stale_volumes::StaleVolumes;

use crate::node_informer::NodeInformer;
use crate::volume_informer::VolumeInformer;

/// The controllers, and what they share.
#[derive(Clone)]
pub(crate) struct Controllers {
    pub(crate) client: Client,
    pub(crate) flavor: ApiFlavor,
    pub(crate) settings: ControllerSettings,
    pub(crate) nodes: NodeInformer,
    pub(crate) volumes: VolumeInformer,
    pub(crate) events: EventPublisher,
    /// The metrics of reconciles.
    pub(crate) metrics: ReconcileMetrics,
    /// The wall clock.
    pub(crate) now: fn() -> Timestamp,
}

impl Controllers {
    /// Runs them until `term` is cancelled.
    pub(crate) async fn run(self, term: CancellationToken) -> anyhow::Result<()> {
        let policy = FinalizerPolicy { flavor: self.flavor, is_kept: self.settings.pvc_finalizer };
        let claims = ClaimInformer::new(self.client.clone(), policy, term.clone());
        let filesystem_resize = FilesystemResize { shared: self.clone() };
        let claim_finalizer = ClaimFinalizer { shared: self.clone(), policy };
        let node_deletion = NodeDeletion { shared: self.clone(), claims: claims.cache.clone() };
        let stale_volumes = StaleVolumes { shared: self };
        // Dropped where they stand when the term ends: everything they do can be done again
        let controllers = async {
            tokio::join!(
                filesystem_resize.run(claims.resizes),
                claim_finalizer.run(claims.cache, claims.finalizer_removals),
                node_deletion.run(),
                stale_volumes.run(),
            )
        };
        watch_and_reconcile(claims.watch, Box::pin(term.run_until_cancelled(controllers).map(drop))).await
    }
}

#[cfg(test)]
mod tests;
