//! Assembles the CSI services and their informers over one Kubernetes client, without the process around them.

use kube::{Api, Client};
use tonic::service::Routes;
use topolvm_api::ApiFlavor;
use topolvm_kube::ReconcileMetrics;
use topolvm_proto::csi::controller_server::ControllerServer;
use topolvm_proto::csi::identity_server::IdentityServer;
use topolvm_runtime::{CancellationToken, Tasks};

use crate::csi::{ControllerService, IdentityService};
use crate::minimum_allocation::MinimumAllocation;
use crate::node_informer::NodeInformer;
use crate::reconcile::{ControllerSettings, Controllers, EventPublisher};
use crate::volume_informer::VolumeInformer;
use crate::volumes::Volumes;

/// The CSI Identity and Controller services.
#[expect(missing_debug_implementations, reason = "the client in it has none")]
#[derive(Clone)]
pub struct Driver {
    identity: IdentityService,
    controller: ControllerService,
}

impl Driver {
    /// Makes the services and starts the informers that they need; they end when `shutdown` is cancelled. `now` is the
    /// wall clock. Returns at once, also while the API server cannot be reached.
    pub fn start(
        client: Client,
        flavor: ApiFlavor,
        minimums: MinimumAllocation,
        now: fn() -> jiff::Timestamp,
        tasks: &Tasks,
        shutdown: &CancellationToken,
    ) -> Self {
        let (informer, volume_task) = VolumeInformer::new(Api::all_with(client.clone(), &flavor), shutdown.clone());
        let (nodes, node_task) = NodeInformer::new(Api::all(client.clone()), flavor, shutdown.clone());
        tasks.spawn("watch of LogicalVolumes", volume_task);
        tasks.spawn("watch of Nodes", node_task);
        let volumes = Volumes { client, flavor, informer, nodes, now };
        let controller = ControllerService::new(volumes.clone(), minimums);
        Self { identity: IdentityService { volumes }, controller }
    }

    /// Turns off snapshots, restored volumes and clones: where no node has a thin device class, nothing should announce
    /// them.
    #[must_use]
    pub fn without_snapshots(mut self) -> Self {
        self.controller.snapshots = false;
        self
    }

    /// Returns the controllers, which share the informers of the services. `instance` names this process in Events.
    pub(crate) fn controllers(
        &self,
        settings: ControllerSettings,
        instance: String,
        metrics: ReconcileMetrics,
    ) -> Controllers {
        let Volumes { client, flavor, informer, nodes, now } = self.identity.volumes.clone();
        let events = EventPublisher::new(client.clone(), instance);
        Controllers { client, flavor, settings, nodes, volumes: informer, events, metrics, now }
    }

    /// Returns the services of the CSI socket.
    pub fn routes(&self) -> Routes {
        Routes::new(IdentityServer::new(self.identity.clone()))
            .add_service(ControllerServer::new(self.controller.clone()))
    }

    /// Returns an error that says what is missing before calls can be answered.
    pub fn ready(&self) -> Result<(), String> {
        self.identity.check_synced()
    }
}
