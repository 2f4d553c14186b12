//! The controllers, which run in one replica at a time, see `leader`:
//!
//! - `node_deletion` deletes the claims and volumes of a deleted Node and removes its finalizer,
//! - `node_labels` labels nodes that have volumes, and cleans those that are not selected any more,
//! - `claim_finalizer` removes finalizers from claims,
//! - `claim_annotation` writes the claims of volumes to their LogicalVolumes, where these do not name them,
//! - `stale_volumes` removes the finalizer from volumes whose node will not come back,
//! - `filesystem_resize` makes the kubelet expand filesystems at once,
//! - `extender_probe` proves that kube-scheduler calls the scheduler extender,
//! - `marked_pods` and `default_class` publish Events with the reason why pods stay pending, and the fix; the former
//!   also deletes the state that the scheduling mode `extender` has proven,
//! - `leader_task` is what the program adds to them.
//!
//! Informers show which objects to check. Before an object is deleted or loses a finalizer, it is read from the API
//! server, and each write names the object that it is meant for, so that an old cache or a second controller cannot hit
//! another object of the same name.

mod args;
mod claim_annotation;
mod claim_finalizer;
mod claim_informer;
mod default_class;
mod extender_probe;
mod filesystem_resize;
mod leader_task;
mod marked_pods;
mod node_deletion;
mod node_labels;
mod pending_resize;
mod probe_pod;
mod pvc_finalizer;
mod stale_volumes;
mod work_queue;

use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::join_all;
use jiff::Timestamp;
use kube::Client;
use topolvm_api::ApiFlavor;
use topolvm_capacity::Capacity;
use topolvm_kube::{CacheWriter, EventPublisher, ReconcileMetrics};
use topolvm_runtime::CancellationToken;

pub(crate) use args::{CleanupSettings, ControllerSettings};

use claim_annotation::ClaimAnnotation;
use claim_finalizer::ClaimFinalizer;
use claim_informer::ClaimInformer;
use default_class::DefaultClass;
use extender_probe::ExtenderProbe;
use filesystem_resize::FilesystemResize;
use leader_task::{LeaderTask, Term, start_all};
use marked_pods::MarkedPods;
use node_deletion::NodeDeletion;
use node_labels::NodeLabels;
use pvc_finalizer::FinalizerPolicy;
use stale_volumes::StaleVolumes;

use crate::claim_watch::ClaimWatch;
use crate::node_informer::NodeInformer;
use crate::scheduling::Scheduling;
use crate::volume_informer::VolumeInformer;

/// Name of the component in Events, as TopoLVM's label on LogicalVolumes has it.
pub(crate) const COMPONENT: &str = "topolvm-controller";

/// The controllers, and what they share.
#[derive(Clone)]
pub(crate) struct Controllers {
    pub(crate) client: Client,
    pub(crate) flavor: ApiFlavor,
    pub(crate) settings: ControllerSettings,
    pub(crate) cleanup: CleanupSettings,
    /// True if the claims of lost nodes that request it are recreated, so that they do not go with a deleted Node.
    pub(crate) rebuilds_claims: bool,
    pub(crate) nodes: NodeInformer,
    pub(crate) volumes: VolumeInformer,
    pub(crate) capacity: Capacity,
    pub(crate) claims: ClaimWatch,
    pub(crate) events: EventPublisher,
    /// The metrics of reconciles.
    pub(crate) metrics: ReconcileMetrics,
    pub(crate) scheduling: Scheduling,
    /// The namespace of this pod.
    pub(crate) namespace: String,
    /// The wall clock.
    pub(crate) now: fn() -> Timestamp,
    /// The tasks that were added to them.
    pub(crate) tasks: Vec<LeaderTask>,
}

impl Controllers {
    /// Adds a task, which `start` begins whenever this replica becomes the leader.
    pub(crate) fn add_task<F>(&mut self, start: impl Fn(&mut Term) -> F + Send + Sync + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.tasks.push(Arc::new(move |term| start(term).boxed()));
    }

    /// Runs them until `term` is cancelled.
    pub(crate) async fn run(self, term: CancellationToken) -> anyhow::Result<()> {
        let Some(probe) = ExtenderProbe::new(&self) else { return self.run_reconcilers(term).await };
        let term = term.child_token();
        let reconciling = async {
            let ended = self.run_reconcilers(term.clone()).await;
            term.cancel();
            ended
        };
        // Deletes its pod when the term ends, and is therefore not dropped like the others
        let (ended, ()) = tokio::join!(reconciling, probe.run(term.clone()));
        ended
    }

    /// Runs all but the extender probe.
    async fn run_reconcilers(self, term: CancellationToken) -> anyhow::Result<()> {
        let policy = FinalizerPolicy { flavor: self.flavor, is_kept: self.settings.pvc_finalizer };
        let writer = CacheWriter::default();
        let (tasks, subscribers) = start_all(&self.tasks, writer.as_reader());
        let claims = ClaimInformer::new(&self.claims, policy, writer, subscribers);
        let filesystem_resize = FilesystemResize { shared: self.clone() };
        let claim_finalizer = ClaimFinalizer { shared: self.clone(), policy };
        let node_deletion = NodeDeletion { shared: self.clone(), claims: claims.cache.clone() };
        let node_labels = NodeLabels { shared: self.clone() };
        let marked_pods = MarkedPods { shared: self.clone() };
        let default_class = DefaultClass { shared: self.clone() };
        let claim_annotation = ClaimAnnotation { shared: self.clone(), claims: claims.cache.clone() };
        let stale_volumes = StaleVolumes { shared: self };
        // Dropped wherever they are when the term ends: everything they do can be repeated
        let controllers = async {
            tokio::join!(
                filesystem_resize.run(claims.resizes),
                claim_finalizer.run(claims.cache, claims.finalizer_removals),
                node_deletion.run(),
                node_labels.run(),
                stale_volumes.run(),
                marked_pods.run(),
                default_class.run(),
                claim_annotation.run(),
                join_all(tasks),
            )
        };
        Box::pin(term.run_until_cancelled(controllers)).await;
        drop(claims.subscription);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
