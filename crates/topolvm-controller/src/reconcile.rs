//! The controllers, which run in one replica at a time, see `leader`:
//!
//! - `node_deletion` deletes the claims and volumes of a deleted Node and removes its finalizer,
//! - `node_labels` labels nodes that have volumes, and cleans those that are not selected any more,
//! - `claim_finalizer` removes finalizers from claims,
//! - `claim_annotation` writes the claims of volumes to their LogicalVolumes, where these do not name them,
//! - `stale_volumes` removes the finalizer from volumes whose node will not come back,
//! - `rebuild` deletes claims whose node is lost and that request it, so that StatefulSets recreate them,
//! - `growth` grows claims that request it when their volumes are nearly full,
//! - `filesystem_resize` makes the kubelet expand filesystems at once,
//! - `extender_probe` proves that kube-scheduler calls the scheduler extender,
//! - `marked_pods` and `default_class` publish Events with the reason why pods stay pending, and the fix; the former
//!   also deletes the state that the scheduling mode `extender` has proven,
//! - `doctor` runs those checks of `kubectl topolvm doctor` that only need objects of the API server.
//!
//! Informers show which objects to check. Before an object is deleted or loses a finalizer, it is read from the API
//! server, and each write names the object that it is meant for, so that an old cache or a second controller cannot hit
//! another object of the same name.

mod args;
mod claim_annotation;
mod claim_finalizer;
mod claim_informer;
mod default_class;
mod doctor;
mod extender_probe;
mod filesystem_resize;
mod growth;
#[cfg(test)]
mod harness;
mod marked_pods;
mod node_deletion;
mod node_labels;
mod pending_resize;
mod probe_pod;
mod pvc_finalizer;
mod rebuild;
mod stale_volumes;
mod work_queue;

use jiff::Timestamp;
use kube::Client;
use topolvm_api::ApiFlavor;
use topolvm_capacity::Capacity;
use topolvm_kube::{EventPublisher, ReconcileMetrics};
use topolvm_runtime::CancellationToken;

pub(crate) use args::ControllerSettings;
pub(crate) use doctor::DoctorContext;

use claim_annotation::ClaimAnnotation;
use claim_finalizer::ClaimFinalizer;
use claim_informer::ClaimInformer;
use default_class::DefaultClass;
use doctor::Doctor;
use extender_probe::ExtenderProbe;
use filesystem_resize::FilesystemResize;
use growth::{GrowingClaims, Growth};
use marked_pods::MarkedPods;
use node_deletion::NodeDeletion;
use node_labels::NodeLabels;
use pvc_finalizer::FinalizerPolicy;
use rebuild::Rebuild;
use stale_volumes::StaleVolumes;

use crate::claim_watch::ClaimWatch;
use crate::node_informer::NodeInformer;
use crate::scheduling::Scheduling;
use crate::volume_informer::VolumeInformer;

/// The controllers, and what they share.
#[derive(Clone)]
pub(crate) struct Controllers {
    pub(crate) client: Client,
    pub(crate) flavor: ApiFlavor,
    pub(crate) settings: ControllerSettings,
    pub(crate) nodes: NodeInformer,
    pub(crate) volumes: VolumeInformer,
    pub(crate) capacity: Capacity,
    pub(crate) claims: ClaimWatch,
    pub(crate) events: EventPublisher,
    /// The metrics of reconciles.
    pub(crate) metrics: ReconcileMetrics,
    pub(crate) scheduling: Scheduling,
    pub(crate) doctor: DoctorContext,
    /// The wall clock.
    pub(crate) now: fn() -> Timestamp,
}

impl Controllers {
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
        let growing = GrowingClaims::default();
        let claims = ClaimInformer::new(&self.claims, policy, growing.clone());
        let filesystem_resize = FilesystemResize { shared: self.clone() };
        let claim_finalizer = ClaimFinalizer { shared: self.clone(), policy };
        let node_deletion = NodeDeletion { shared: self.clone(), claims: claims.cache.clone() };
        let node_labels = NodeLabels { shared: self.clone() };
        let marked_pods = MarkedPods { shared: self.clone() };
        let default_class = DefaultClass { shared: self.clone() };
        let doctor = Doctor { shared: self.clone() };
        let claim_annotation = ClaimAnnotation { shared: self.clone(), claims: claims.cache.clone() };
        let growth = Growth { shared: self.clone(), claims: growing };
        let rebuild = Rebuild { shared: self.clone(), claims: claims.cache.clone() };
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
                doctor.run(),
                claim_annotation.run(),
                growth.run(),
                rebuild.run(),
            )
        };
        Box::pin(term.run_until_cancelled(controllers)).await;
        drop(claims.subscription);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
