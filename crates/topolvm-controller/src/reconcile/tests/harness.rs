//! Test harness: the controllers over a fake API server.

use std::time::Duration;

use jiff::Timestamp;
use kube::Client;
use prometheus_client::registry::Registry;
use topolvm_api::{ApiFlavor, NodeSelection};
use topolvm_capacity::MinimumAllocation;
use topolvm_kube::ReconcileMetrics;
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_testkit::ApiServer;

use super::super::{CleanupSettings, ControllerSettings, Controllers};
use crate::driver::{Driver, DriverSettings};
use crate::scheduling::Scheduling;

/// The defaults of the flags.
pub(in crate::reconcile) const DEFAULTS: ControllerSettings =
    ControllerSettings { skip_node_finalize: false, pvc_finalizer: false };
pub(in crate::reconcile) const CLEANUP: CleanupSettings =
    CleanupSettings { stale_period: Duration::from_hours(24), cleanup_interval: Duration::from_mins(10) };

pub(in crate::reconcile) struct Harness {
    pub(in crate::reconcile) server: ApiServer,
    pub(in crate::reconcile) tasks: Tasks,
    pub(in crate::reconcile) shutdown: CancellationToken,
    registry: Registry,
}

impl Harness {
    /// Starts the controllers.
    pub(in crate::reconcile) fn start(server: &ApiServer, settings: ControllerSettings) -> Self {
        Self::start_as(server, ApiFlavor::TopoLvm, settings)
    }

    pub(in crate::reconcile) fn start_as(server: &ApiServer, flavor: ApiFlavor, settings: ControllerSettings) -> Self {
        Self::start_with(server, flavor, settings, |_, _, _, _| Scheduling::default())
    }

    /// Starts the controllers where nodes are selected by labels.
    pub(in crate::reconcile) fn start_selecting(
        server: &ApiServer,
        flavor: ApiFlavor,
        selection: NodeSelection,
    ) -> Self {
        Self::start_all(server, flavor, selection, |_, _, _, _| {})
    }

    /// Starts the controllers after what `compose` does to them.
    pub(in crate::reconcile) fn start_composed(server: &ApiServer, compose: impl FnOnce(&mut Controllers)) -> Self {
        Self::start_all(server, ApiFlavor::TopoLvm, NodeSelection::default(), |controllers, _, _, _| {
            compose(controllers);
        })
    }

    /// Starts the controllers with what `scheduling` makes.
    pub(in crate::reconcile) fn start_with(
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
    pub(in crate::reconcile) fn controllers(
        server: &ApiServer,
        flavor: ApiFlavor,
        selection: NodeSelection,
        now: fn() -> Timestamp,
        tasks: &Tasks,
        shutdown: &CancellationToken,
    ) -> Controllers {
        let settings = DriverSettings {
            minimums: MinimumAllocation { block: 0, ext4: 0, xfs: 0, btrfs: 0 },
            node_labels: selection,
            node_strategy: None,
            snapshots: true,
        };
        let driver = Driver::start(server.client(), flavor, settings, now, tasks, shutdown);
        driver.watch_claims(tasks, shutdown);
        let metrics = ReconcileMetrics::register(&mut Registry::default());
        driver.controllers(DEFAULTS, CLEANUP, "me".to_owned(), metrics, Scheduling::default(), "system".to_owned())
    }

    /// Waits until nothing is left to do that does not wait for the clock: under tokio's paused time a sleep ends when
    /// all tasks are idle.
    pub(in crate::reconcile) async fn settle(&self) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    pub(in crate::reconcile) fn has(&self, resource: &str, namespace: &str, name: &str) -> bool {
        self.server.get_json(resource, namespace, name).is_some()
    }

    /// Waits until the object is gone.
    pub(in crate::reconcile) async fn gone(&self, resource: &str, namespace: &str, name: &str) {
        self.server.until(resource, namespace, name, |object| object.is_none().then_some(())).await;
    }

    /// Returns reason and object of all Events.
    pub(in crate::reconcile) fn events(&self) -> Vec<(String, String)> {
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let events = self.server.list_json("events.events.k8s.io");
        events.iter().map(|event| (text(&event["reason"]), text(&event["regarding"]["name"]))).collect()
    }

    /// Returns the metrics page.
    pub(in crate::reconcile) fn metrics(&self) -> String {
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &self.registry).unwrap();
        page
    }

    pub(in crate::reconcile) async fn end(self) {
        self.shutdown.cancel();
        self.tasks.wait().await.unwrap();
    }
}

/// The time in all tests.
fn now() -> Timestamp {
    "2026-01-02T00:00:00Z".parse().unwrap()
}
