//! Test harness: the controllers over a fake API server.

use std::time::Duration;

use jiff::Timestamp;
use kube::{Api, Client};
use prometheus_client::registry::Registry;
use topolvm_api::{ApiFlavor, NodeSelection};
use topolvm_capacity::{Capacity, MinimumAllocation};
use topolvm_kube::{EventPublisher, ReconcileMetrics};
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_testkit::ApiServer;

use super::{COMPONENT, CleanupSettings, ControllerSettings, Controllers};
use crate::claim_watch::ClaimWatch;
use crate::node_informer::NodeInformer;
use crate::pod_claims::PodClaims;
use crate::scheduling::Scheduling;
use crate::volume_informer::VolumeInformer;

/// The defaults of the flags.
pub(super) const DEFAULTS: ControllerSettings = ControllerSettings { skip_node_finalize: false, pvc_finalizer: false };
pub(super) const CLEANUP: CleanupSettings =
    CleanupSettings { stale_period: Duration::from_hours(24), cleanup_interval: Duration::from_mins(10) };

pub(super) struct Harness {
    pub(super) server: ApiServer,
    pub(super) tasks: Tasks,
    pub(super) shutdown: CancellationToken,
    registry: Registry,
}

impl Harness {
    /// Starts the controllers.
    pub(super) fn start(server: &ApiServer, settings: ControllerSettings) -> Self {
        Self::start_as(server, ApiFlavor::TopoLvm, settings)
    }

    pub(super) fn start_as(server: &ApiServer, flavor: ApiFlavor, settings: ControllerSettings) -> Self {
        Self::start_with(server, flavor, settings, |_, _, _, _| Scheduling::default())
    }

    /// Starts the controllers where nodes are selected by labels.
    pub(super) fn start_selecting(server: &ApiServer, flavor: ApiFlavor, selection: NodeSelection) -> Self {
        Self::start_all(server, flavor, selection, |_, _, _, _| {})
    }

    /// Starts the controllers after what `compose` does to them.
    pub(super) fn start_composed(server: &ApiServer, compose: impl FnOnce(&mut Controllers)) -> Self {
        Self::start_all(server, ApiFlavor::TopoLvm, NodeSelection::default(), |controllers, _, _, _| {
            compose(controllers);
        })
    }

    /// Starts the controllers with what `scheduling` makes.
    pub(super) fn start_with(
        server: &ApiServer,
        flavor: ApiFlavor,
        settings: ControllerSettings,
        scheduling: impl FnOnce(&Client, &mut Registry, &Tasks, &CancellationToken) -> Scheduling,
    ) -> Self {
        Self::start_all(server, flavor, NodeSelection::default(), |controllers, registry, tasks, shutdown| {
            controllers.settings = settings;
            controllers.scheduling = scheduling(&server.client(), registry, tasks, shutdown);
        })
    }

    fn start_all(
        server: &ApiServer,
        flavor: ApiFlavor,
        selection: NodeSelection,
        compose: impl FnOnce(&mut Controllers, &mut Registry, &Tasks, &CancellationToken),
    ) -> Self {
        let shutdown = CancellationToken::new();
        let tasks = Tasks::new(shutdown.clone());
        let mut controllers = Self::controllers(server, flavor, selection, now, &tasks, &shutdown);
        let mut registry = Registry::default();
        controllers.metrics = ReconcileMetrics::register(&mut registry);
        compose(&mut controllers, &mut registry, &tasks, &shutdown);
        tasks.spawn("controllers", controllers.run(shutdown.clone()));
        Self { server: server.clone(), tasks, shutdown, registry }
    }

    /// Starts the informers, and returns the controllers without running them.
    pub(super) fn controllers(
        server: &ApiServer,
        flavor: ApiFlavor,
        selection: NodeSelection,
        now: fn() -> Timestamp,
        tasks: &Tasks,
        shutdown: &CancellationToken,
    ) -> Controllers {
        let client = server.client();
        let capacity = Capacity::new(flavor, MinimumAllocation { block: 0, ext4: 0, xfs: 0, btrfs: 0 }, now);
        let (nodes, node_task) =
            NodeInformer::new(Api::all(client.clone()), flavor, selection, capacity.clone(), shutdown.clone());
        let (volumes, volume_task) =
            VolumeInformer::new(Api::all_with(client.clone(), &flavor), capacity.clone(), shutdown.clone());
        let claims = ClaimWatch::default();
        tasks.spawn("nodes", node_task);
        tasks.spawn("volumes", volume_task);
        tasks.spawn(
            "claims",
            claims.clone().run(client.clone(), capacity.clone(), PodClaims::default(), shutdown.clone()),
        );
        let metrics = ReconcileMetrics::register(&mut Registry::default());
        let events = EventPublisher::new(client.clone(), COMPONENT, "me".to_owned());
        let scheduling = Scheduling::default();
        let (settings, cleanup) = (DEFAULTS, CLEANUP);
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
            namespace: "system".to_owned(),
            now,
            tasks: Vec::new(),
        }
    }

    /// Waits until nothing is left to do that does not wait for the clock: under tokio's paused time a sleep ends when
    /// all tasks are idle.
    pub(super) async fn settle(&self) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    pub(super) fn has(&self, resource: &str, namespace: &str, name: &str) -> bool {
        self.server.get_json(resource, namespace, name).is_some()
    }

    /// Waits until the object is gone.
    pub(super) async fn gone(&self, resource: &str, namespace: &str, name: &str) {
        self.server.until(resource, namespace, name, |object| object.is_none().then_some(())).await;
    }

    /// Returns reason and object of all Events.
    pub(super) fn events(&self) -> Vec<(String, String)> {
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let events = self.server.list_json("events.events.k8s.io");
        events.iter().map(|event| (text(&event["reason"]), text(&event["regarding"]["name"]))).collect()
    }

    /// Returns the metrics page.
    pub(super) fn metrics(&self) -> String {
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &self.registry).unwrap();
        page
    }

    pub(super) async fn end(self) {
        self.shutdown.cancel();
        self.tasks.wait().await.unwrap();
    }
}

/// The time in all tests.
fn now() -> Timestamp {
    "2026-01-02T00:00:00Z".parse().unwrap()
}
