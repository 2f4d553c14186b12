//! Provisions and deletes volumes for claims, as external-provisioner does, but in the process of the CSI driver: it
//! calls the Controller service without a socket, and takes claims and Nodes from watches that the process has anyway.
//!
//! `pending_claims`, `storage_classes`, `known_volumes` and `registered_nodes` are what the watches show, and
//! `next_step` decides about a claim. `preparation` turns it into a request, with the pure parts in `volume_request`,
//! `topology` and `secret_reference`; `provisioning` sends it and saves the PersistentVolume that `persistent_volume`
//! builds. If a term ends in the middle of that, `progress` remembers it; if the process ends, `held_claims` does.
//! `deletion` deletes what is released, as `volume_step` decides. `content_source`, `source_protection` and `copies`
//! are about copies.

mod args;
mod attempt;
mod attributes_class;
mod content_source;
mod copies;
mod create_failure;
mod deletion;
mod error;
mod held_claims;
mod known_volume;
mod known_volumes;
mod next_step;
mod node_topologies;
mod pending_claims;
mod persistent_volume;
mod preparation;
mod progress;
mod provisioning;
mod registered_nodes;
mod secret_reference;
mod source_protection;
mod storage_classes;
mod topology;
mod volume_request;
mod volume_snapshot;
mod volume_step;

use std::sync::Arc;
use std::time::Duration;

use csi_calls::{Capabilities, CsiController};
use futures::FutureExt as _;
use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::Event;
use kube::{Api, Client};
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::UnboundedReceiverStream;
use topolvm_kube::{Cache, EventPublisher, ReconcileMetrics, WorkQueueConfig, reconcile_changes, watch_all};
use topolvm_proto::csi::controller_server::Controller;
use topolvm_runtime::grpc::RpcMetrics;
use topolvm_runtime::{Backoff, CancellationToken, error_chain};

pub use args::ProvisionerArgs;
pub use held_claims::release_held_claims;
pub use progress::Progress;

use known_volumes::KnownVolumes;
use node_topologies::NodeTopologies;
use pending_claims::PendingClaims;
use preparation::Preparation;
use provisioning::ProvisionError;
use registered_nodes::RegisteredNodes;
use storage_classes::StorageClasses;
use volume_request::claim_uid;

/// Pauses while the driver does not say what it can do.
const CAPABILITIES_RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));

/// The dependencies of the provisioner.
#[expect(missing_debug_implementations, reason = "the client has none")]
#[derive(Clone)]
pub struct ProvisionerContext {
    /// The client of the API server.
    pub client: Client,
    /// The name of the CSI driver.
    pub driver: String,
    /// The only key of its topology, which is a label of Nodes.
    pub topology_key: String,
    /// The Controller service of the driver.
    pub controller: Arc<dyn Controller>,
    /// Becomes true when the driver has listed what it needs to answer calls.
    pub driver_ready: watch::Receiver<bool>,
    /// The cache of Nodes, with at least this label.
    pub nodes: Cache<PartialObjectMeta<Node>>,
    /// The identity of this process, which PersistentVolumes name.
    pub identity: String,
    /// The publisher of Events about claims and PersistentVolumes.
    pub events: EventPublisher,
    /// The metric of reconciles.
    pub metrics: ReconcileMetrics,
    /// The metrics of calls.
    pub calls: RpcMetrics,
    /// The memory of what was begun, which outlives the provisioner.
    pub progress: Progress,
}

/// The provisioner. Clones share what they know.
#[expect(missing_debug_implementations, reason = "the client in it has none")]
#[derive(Clone)]
pub struct Provisioner {
    context: ProvisionerContext,
    settings: ProvisionerArgs,
    csi: CsiController,
    preparation: Preparation,
    claims: PendingClaims,
    classes: StorageClasses,
    volumes: KnownVolumes,
    registered: RegisteredNodes,
}

impl Provisioner {
    /// Makes the provisioner, which knows no claim yet.
    #[must_use]
    pub fn new(context: ProvisionerContext, settings: ProvisionerArgs) -> Self {
        let driver = || context.driver.clone();
        let registered = RegisteredNodes::new(driver(), context.topology_key.clone());
        let topologies = NodeTopologies {
            client: context.client.clone(),
            nodes: context.nodes.clone(),
            registered: registered.clone(),
            driver: driver(),
            key: context.topology_key.clone(),
        };
        let preparation = Preparation {
            client: context.client.clone(),
            driver: driver(),
            default_filesystem: settings.provisioner_default_fstype.clone(),
            topologies,
        };
        Self {
            csi: CsiController::new(context.controller.clone(), settings.provisioner_timeout, context.calls.clone()),
            preparation,
            claims: PendingClaims::new(driver()),
            classes: StorageClasses::new(driver()),
            volumes: KnownVolumes::new(driver(), settings.provisioner_volume_name_prefix.clone()),
            registered,
            settings,
            context,
        }
    }

    /// Returns the function that takes the events of a watch of all claims.
    pub fn subscriber(&self) -> impl FnMut(&Event<PersistentVolumeClaim>) + Send + use<> {
        let claims = self.claims.clone();
        move |event| claims.apply(event)
    }

    /// Provisions and deletes until `term` is cancelled. May run again afterwards.
    pub async fn run(self, term: CancellationToken) -> anyhow::Result<()> {
        let (client, end) = (|| self.context.client.clone(), || term.clone());
        // Another process may have been the provisioner since the last lists
        self.classes.await_list();
        self.volumes.await_list();
        self.registered.await_list();
        let (classes, claims) = (self.classes.clone(), self.claims.clone());
        let watch_classes = watch_all("StorageClasses", Api::all(client()), end(), move |event| {
            classes.apply(event).iter().for_each(|class| claims.enqueue_class(class));
        });
        let volumes = self.volumes.clone();
        let watch_volumes =
            watch_all("PersistentVolumes", Api::all(client()), end(), move |event| volumes.apply(event));
        let (registered, claims) = (self.registered.clone(), self.claims.clone());
        let watch_nodes = watch_all("CSINodes", Api::all(client()), end(), move |event| {
            registered.apply(&event).iter().for_each(|node| claims.enqueue_node(node));
        });
        // Dropped wherever it is when the term ends: an attempt is continued by the next one
        let working = term.run_until_cancelled(Box::pin(self.work())).map(|_| Ok(()));
        tokio::try_join!(watch_classes, watch_volumes, watch_nodes, working).map(drop)
    }

    /// Does what is due, when all is known that decides it. Ends only when the process does.
    async fn work(&self) {
        let (claim_queue, claims) = mpsc::unbounded_channel();
        let (volume_queue, volumes) = mpsc::unbounded_channel();
        let (deletion_queue, deletions) = mpsc::unbounded_channel();
        let mut driver_ready = self.context.driver_ready.clone();
        // False only when the process ends
        let is_listed = driver_ready.wait_for(|ready| *ready).await.is_ok()
            && self.volumes.wait_until_listed().await
            && self.classes.wait_until_listed().await
            && self.registered.wait_until_listed().await
            && self.context.nodes.wait_until_listed().await
            && self.claims.wait_until_listed().await;
        if !is_listed {
            return;
        }
        let announced = self.read_capabilities().await;
        // Also those whose claims are gone
        for uid in self.context.progress.claims() {
            // The receiver is here
            drop(claim_queue.send(uid));
        }
        self.claims.connect(claim_queue);
        self.volumes.connect(volume_queue, deletion_queue);
        tokio::join!(
            self.provision_all(claims, announced),
            self.retry_refused(),
            self.delete_all(volumes),
            self.follow_deletions(deletions),
            self.release_sources(),
            async {
                if announced.snapshots {
                    self.release_snapshots().await;
                }
            },
        );
    }

    async fn read_capabilities(&self) -> Capabilities {
        let mut backoff = CAPABILITIES_RETRY;
        loop {
            match self.csi.capabilities().await {
                Ok(capabilities) => return capabilities,
                Err(error) => {
                    tracing::warn!(error = error_chain(&error), "the capabilities are not known; trying again");
                    tokio::time::sleep(backoff.fail()).await;
                }
            }
        }
    }

    fn work_queue(&self) -> WorkQueueConfig {
        let settings = &self.settings;
        let backoff = Backoff::new(settings.provisioner_retry_interval_start, settings.provisioner_retry_interval_max);
        WorkQueueConfig { concurrency: settings.provisioner_worker_threads.get(), backoff }
    }

    async fn provision_all(&self, claims: mpsc::UnboundedReceiver<String>, announced: Capabilities) {
        let reconcile = async |uid: String| {
            let reconcile = Box::pin(self.reconcile_claim(&uid, announced));
            self.context.metrics.observe("provisioner", reconcile).await
        };
        let log = |uid: &String, error: &ProvisionError, pause: Duration| {
            tracing::warn!(claim = uid, error = error_chain(error), ?pause, "cannot provision a volume");
        };
        reconcile_changes(UnboundedReceiverStream::new(claims), self.work_queue(), |_| (), reconcile, log).await;
    }

    async fn delete_all(&self, volumes: mpsc::UnboundedReceiver<String>) {
        let reconcile = async |name: String| {
            let reconcile = Box::pin(self.reconcile_volume(&name));
            self.context.metrics.observe("volumedeletion", reconcile).await
        };
        let log = |name: &String, error: &deletion::DeleteError, pause: Duration| {
            tracing::warn!(volume = name, error = error_chain(error), ?pause, "cannot delete a volume");
        };
        reconcile_changes(UnboundedReceiverStream::new(volumes), self.work_queue(), |_| (), reconcile, log).await;
    }

    /// Provisions again for claims that wait and whose PersistentVolume, or another one of its name, was deleted.
    async fn follow_deletions(&self, mut deleted: mpsc::UnboundedReceiver<String>) {
        while let Some(name) = deleted.recv().await {
            if let Some(uid) = claim_uid(&self.settings.provisioner_volume_name_prefix, &name) {
                self.claims.note_lost_volume(uid);
            }
        }
    }
}

#[cfg(test)]
mod tests;
