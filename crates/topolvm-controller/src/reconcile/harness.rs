//! The controllers over a fake API server.

use std::time::Duration;

use jiff::Timestamp;
use kube::Api;
use prometheus_client::registry::Registry;
use topolvm_api::ApiFlavor;
use topolvm_kube::ReconcileMetrics;
use topolvm_runtime::{CancellationToken, Tasks};
use topolvm_testkit::ApiServer;

use super::{Controllers, Settings};
use crate::node_informer::Nodes;
use crate::volume_informer::VolumeWatch;

/// As the flags are unless told otherwise.
pub(super) const DEFAULTS: Settings = Settings {
    skip_node_finalize: false,
    claim_finalizer: false,
    stale_period: Duration::from_hours(24),
    cleanup_interval: Duration::from_mins(10),
};

pub(super) struct Harness {
    pub(super) server: ApiServer,
    pub(super) tasks: Tasks,
    pub(super) shutdown: CancellationToken,
    registry: Registry,
}

impl Harness {
    /// The controllers at work, on what the server has at the moment and gets later.
    pub(super) fn start(server: &ApiServer, settings: Settings) -> Self {
        Self::start_as(server, ApiFlavor::TopoLvm, settings)
    }

    pub(super) fn start_as(server: &ApiServer, flavor: ApiFlavor, settings: Settings) -> Self {
        let shutdown = CancellationToken::new();
        let tasks = Tasks::new(shutdown.clone());
        let mut controllers = Self::controllers(server, flavor, now, &tasks, &shutdown);
        controllers.settings = settings;
        let mut registry = Registry::default();
        controllers.metrics = ReconcileMetrics::register(&mut registry);
        tasks.spawn("controllers", controllers.run(shutdown.clone()));
        Self { server: server.clone(), tasks, shutdown, registry }
    }

    /// Controllers with their watches, and nothing else, at work.
    pub(super) fn controllers(
        server: &ApiServer,
        flavor: ApiFlavor,
        now: fn() -> Timestamp,
        tasks: &Tasks,
        shutdown: &CancellationToken,
    ) -> Controllers {
        let client = server.client();
        let (nodes, node_task) = Nodes::new(Api::all(client.clone()), flavor, shutdown.clone());
        let (volumes, volume_task) = VolumeWatch::new(Api::all_with(client.clone(), &flavor), shutdown.clone());
        tasks.spawn("nodes", node_task);
        tasks.spawn("volumes", volume_task);
        let metrics = ReconcileMetrics::register(&mut Registry::default());
        Controllers { client, flavor, settings: DEFAULTS, nodes, volumes, instance: "me".to_owned(), metrics, now }
    }

    /// Lets everything happen that happens without the clock: under tokio's paused time a sleep ends when nobody has anything else to do.
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

    /// Reason and object of all Events.
    pub(super) fn events(&self) -> Vec<(String, String)> {
        let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
        let events = self.server.list_json("events.events.k8s.io");
        events.iter().map(|event| (text(&event["reason"]), text(&event["regarding"]["name"]))).collect()
    }

    /// The metrics page.
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

/// What time it is in all tests.
pub(super) fn now() -> Timestamp {
    "2026-01-02T00:00:00Z".parse().unwrap()
}
