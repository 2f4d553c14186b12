//! Assembles the CSI services and their informers over one Kubernetes client, without the process around them.

use std::sync::Arc;

use capacity_publisher::CapacityPublisher;
use embedded_provisioner::{Progress, ProvisionerContext};
use embedded_resizer::ResizerContext;
use embedded_snapshotter::SnapshotterContext;
use kube::{Api, Client};
use tokio::sync::watch;
use tonic::service::Routes;
use topolvm_api::{ApiFlavor, NodeSelection, NodeStrategy};
use topolvm_capacity::{Capacity, watch_classes};
use topolvm_doctor::Checked;
use topolvm_kube::{EventPublisher, LogicalVolumes, ReconcileMetrics};
use topolvm_proto::csi::controller_server::ControllerServer;
use topolvm_proto::csi::group_controller_server::GroupControllerServer;
use topolvm_proto::csi::identity_server::IdentityServer;
use topolvm_runtime::grpc::RpcMetrics;
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_ui::{Cluster, WebPage};

use crate::claim_watch::ClaimWatch;
use crate::csi::{ControllerService, IdentityService};
use crate::minimum_allocation::MinimumAllocation;
use crate::node_informer::NodeInformer;
use crate::pod_claims::PodClaims;
use crate::reconcile::{COMPONENT, CleanupSettings, ControllerSettings, Controllers};
use crate::scheduling::Scheduling;
use crate::volume_informer::VolumeInformer;
use crate::volumes::{NodeChoice, VolumeObjects, Volumes};

/// Settings of the CSI services.
#[derive(Clone, Debug)]
pub struct DriverSettings {
    /// Smallest sizes of volumes.
    pub minimums: MinimumAllocation,
    /// Labels that select the nodes that have storage.
    pub node_labels: NodeSelection,
    /// Prefers nodes for volumes without a selected node; `None` keeps the order of the request.
    pub node_strategy: Option<NodeStrategy>,
    /// True if snapshots, restored volumes and clones are enabled: where no node has a thin device class, nothing
    /// should announce them.
    pub snapshots: bool,
}

/// The CSI Identity and Controller services.
#[expect(missing_debug_implementations, reason = "the client in it has none")]
#[derive(Clone)]
pub struct Driver {
    identity: IdentityService,
    controller: ControllerService,
    claims: ClaimWatch,
}

impl Driver {
    /// Makes the services and starts the informers that they need; they end when `shutdown` is cancelled. `now` is the
    /// wall clock. Returns at once, also while the API server cannot be reached.
    pub fn start(
        client: Client,
        flavor: ApiFlavor,
        settings: DriverSettings,
        now: fn() -> jiff::Timestamp,
        tasks: &Tasks,
        shutdown: &CancellationToken,
    ) -> Self {
        let DriverSettings { minimums, node_labels, node_strategy, snapshots } = settings;
        let capacity = Capacity::new(flavor, minimums, now);
        let volume_api = Api::all_with(client.clone(), &flavor);
        let (informer, volume_task) = VolumeInformer::new(volume_api, capacity.clone(), shutdown.clone());
        let node_api = Api::all(client.clone());
        let (nodes, node_task) = NodeInformer::new(node_api, flavor, node_labels, capacity.clone(), shutdown.clone());
        tasks.spawn("watch of LogicalVolumes", volume_task);
        tasks.spawn("watch of Nodes", node_task);
        let pods = PodClaims::default();
        let objects = VolumeObjects { client, flavor, informer };
        let node_choice = NodeChoice { objects: objects.clone(), nodes, capacity, node_strategy, pods };
        let volumes = Volumes { objects, node_choice, now };
        let controller = ControllerService::new(volumes.clone(), minimums, snapshots);
        Self { identity: IdentityService { volumes }, controller, claims: ClaimWatch::default() }
    }

    /// Starts to reserve for claims whose node is selected, by watches of claims, pods and StorageClasses. Volumes are
    /// reserved for in any case.
    pub fn reserve_for_claims(&self, tasks: &Tasks, shutdown: &CancellationToken) {
        let NodeChoice { objects: VolumeObjects { client, .. }, capacity, pods, .. } = self.node_choice().clone();
        tasks.spawn("watch of pods", pods.run(client.clone(), shutdown.clone()));
        tasks.spawn("watch of StorageClasses", watch_classes(capacity, client, shutdown.clone()));
        self.watch_claims(tasks, shutdown);
    }

    /// Starts the watch of claims alone.
    pub(crate) fn watch_claims(&self, tasks: &Tasks, shutdown: &CancellationToken) {
        let NodeChoice { objects: VolumeObjects { client, .. }, capacity, pods, .. } = self.node_choice().clone();
        tasks.spawn("watch of claims", self.claims.clone().run(client, capacity, pods, shutdown.clone()));
    }

    /// Returns the controllers, which share the informers of the services. `instance` names this process in Events.
    pub(crate) fn controllers(
        &self,
        settings: ControllerSettings,
        cleanup: CleanupSettings,
        instance: String,
        metrics: ReconcileMetrics,
        scheduling: Scheduling,
        namespace: String,
    ) -> Controllers {
        let NodeChoice { objects, nodes, capacity, .. } = self.node_choice().clone();
        let VolumeObjects { client, flavor, informer } = objects;
        let now = self.identity.volumes.now;
        let claims = self.claims.clone();
        let events = EventPublisher::new(client.clone(), COMPONENT, instance);
        let volumes = informer;
        Controllers {
            client,
            flavor,
            settings,
            cleanup,
            rebuilds_claims: false,
            nodes,
            volumes,
            capacity,
            claims,
            events,
            metrics,
            scheduling,
            namespace,
            now,
            tasks: Vec::new(),
        }
    }

    /// Returns the publisher of CSIStorageCapacity objects, which are in the namespace of this pod.
    pub(crate) fn capacity_publisher(&self, namespace: String, pod: String) -> CapacityPublisher {
        let NodeChoice { objects: VolumeObjects { client, flavor, .. }, capacity, .. } = self.node_choice().clone();
        CapacityPublisher { client, flavor, minimums: self.controller.minimums, capacity, namespace, pod }
    }

    /// Returns the web page, which reads the caches of the services and what the checks have found.
    pub(crate) fn web_page(
        &self,
        namespace: String,
        checked: watch::Receiver<Option<Arc<Checked>>>,
        shutdown: &CancellationToken,
    ) -> WebPage {
        let NodeChoice { objects, nodes, capacity, .. } = self.node_choice().clone();
        let VolumeObjects { client, flavor, informer } = objects;
        let now = self.identity.volumes.now;
        let cluster = Cluster {
            flavor,
            volumes_changed: informer.changes(),
            volumes: informer.cache,
            nodes: nodes.cache,
            capacity,
            checked,
            client,
            namespace,
            now,
        };
        WebPage::new(cluster, shutdown.clone())
    }

    /// Returns the cache of LogicalVolumes.
    pub(crate) fn volumes(&self) -> LogicalVolumes {
        self.identity.volumes.objects.informer.cache.clone()
    }

    /// Returns the dependencies of the embedded provisioner, which calls the Controller service without a socket.
    /// `identity` is that of this process in PersistentVolumes.
    pub(crate) fn provisioner_context(
        &self,
        identity: String,
        controllers: &Controllers,
        calls: RpcMetrics,
    ) -> ProvisionerContext {
        let flavor = controllers.flavor;
        ProvisionerContext {
            client: controllers.client.clone(),
            driver: flavor.driver_name().to_owned(),
            topology_key: flavor.topology_key().to_owned(),
            controller: Arc::new(self.controller.clone()),
            driver_ready: self.volumes().listed(),
            nodes: controllers.nodes.cache.clone(),
            identity,
            events: controllers.events.clone(),
            metrics: controllers.metrics.clone(),
            calls,
            progress: Progress::default(),
        }
    }

    /// Returns the dependencies of the embedded resizer, which calls the Controller service without a socket.
    pub(crate) fn resizer_context(&self, controllers: &Controllers, calls: RpcMetrics) -> ResizerContext {
        ResizerContext {
            client: controllers.client.clone(),
            flavor: controllers.flavor,
            controller: Arc::new(self.controller.clone()),
            driver_ready: self.volumes().listed(),
            events: controllers.events.clone(),
            metrics: controllers.metrics.clone(),
            calls,
            now: controllers.now,
        }
    }

    /// Returns the dependencies of the embedded snapshotter, which calls the Controller and GroupController services
    /// without a socket.
    pub(crate) fn snapshotter_context(&self, controllers: &Controllers, calls: RpcMetrics) -> SnapshotterContext {
        SnapshotterContext {
            client: controllers.client.clone(),
            flavor: controllers.flavor,
            controller: Arc::new(self.controller.clone()),
            group_controller: Arc::new(self.controller.clone()),
            driver_ready: self.volumes().listed(),
            events: controllers.events.clone(),
            metrics: controllers.metrics.clone(),
            calls,
            now: controllers.now,
        }
    }

    fn node_choice(&self) -> &NodeChoice {
        &self.identity.volumes.node_choice
    }

    /// Returns the services of the CSI socket.
    pub fn routes(&self) -> Routes {
        Routes::new(IdentityServer::new(self.identity.clone()))
            .add_service(ControllerServer::new(self.controller.clone()))
            .add_service(GroupControllerServer::new(self.controller.clone()))
    }

    /// Checks that the driver can answer calls; the error names the missing part.
    pub fn ready(&self) -> Result<(), String> {
        self.identity.check_synced()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;
    use prometheus_client::registry::Registry;
    use topolvm_testkit::ApiServer;

    use super::*;

    const LVS: &str = "logicalvolumes.topolvm.io";

    #[tokio::test(start_paused = true)]
    async fn embedded_controllers_wait_for_the_list_of_volumes() {
        let (server, shutdown) = (ApiServer::new(), CancellationToken::new());
        server.fail_next("list", LVS, 3, 500);
        let tasks = Tasks::new(shutdown.clone());
        let settings = DriverSettings {
            minimums: MinimumAllocation { block: 0, ext4: 0, xfs: 0, btrfs: 0 },
            node_labels: NodeSelection::default(),
            node_strategy: None,
            snapshots: true,
        };
        let now = || Timestamp::UNIX_EPOCH;
        let driver = Driver::start(server.client(), ApiFlavor::TopoLvm, settings, now, &tasks, &shutdown);
        let controllers = driver.controllers(
            ControllerSettings { skip_node_finalize: false, pvc_finalizer: false },
            CleanupSettings { stale_period: Duration::from_hours(24), cleanup_interval: Duration::from_mins(10) },
            "me".to_owned(),
            ReconcileMetrics::register(&mut Registry::default()),
            Scheduling::default(),
            "system".to_owned(),
        );
        let calls = RpcMetrics::register(&mut Registry::default());
        let ready = [
            driver.provisioner_context("me".to_owned(), &controllers, calls.clone()).driver_ready,
            driver.resizer_context(&controllers, calls.clone()).driver_ready,
            driver.snapshotter_context(&controllers, calls).driver_ready,
        ];
        server.wait_for_requests("list", LVS, 1).await;
        assert!(ready.iter().all(|ready| !*ready.borrow()));
        for mut ready in ready {
            tokio::time::timeout(Duration::from_mins(1), ready.wait_for(|ready| *ready)).await.unwrap().unwrap();
        }
        assert_eq!(server.count("list", LVS), 4);
        shutdown.cancel();
        tasks.wait().await.unwrap();
    }
}
