//! Publishes the capacity of this node: the agent watches free space in lvmd, exports it as metrics and writes it to
//! annotations of the Node object, where the controller and the scheduler read it. On request it also publishes the
//! capacity in the status of the Node.
//!
//! The tasks retry indefinitely: lvmd, the API server and the Node object may each go away and come back.

mod extended_resources;
mod lvmd_watch;
mod metrics;
mod node_annotations;
mod node_watch;

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::Client;
use kube::api::Api;
use kube::core::PartialObjectMeta;
use lvmd_client::{DeviceClasses, LvmdClient};
use prometheus_client::registry::Registry;
use tokio::sync::{mpsc, watch};
use topolvm_api::{ApiFlavor, NodeCapacity, NodeSelection};
use topolvm_runtime::{Backoff, CancellationToken, Tasks};

use extended_resources::ExtendedResources;
use lvmd_watch::Receivers;
use metrics::Gauges;
use node_annotations::Publication;

/// Back-off while lvmd or the API server is away.
const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));

/// Publishes the capacity of a node.
#[derive(Clone, Debug)]
pub struct Capacity {
    flavor: ApiFlavor,
    node: String,
    selection: NodeSelection,
    shows_resources: bool,
    lvmd: LvmdClient,
    gauges: Gauges,
    device_classes: watch::Sender<DeviceClasses>,
    node_object: watch::Sender<Option<PartialObjectMeta<Node>>>,
}

impl Capacity {
    /// Makes the publisher of the capacity of `node` as `lvmd` reports it. The gauges go to `registry`.
    pub fn new(flavor: ApiFlavor, node: String, lvmd: LvmdClient, registry: &mut Registry) -> Self {
        let (device_classes, node_object) = (watch::Sender::new(DeviceClasses::default()), watch::Sender::default());
        let selection = NodeSelection::default();
        let gauges = Gauges::register(registry, &node);
        Self { flavor, node, selection, shows_resources: false, lvmd, gauges, device_classes, node_object }
    }

    /// Sets the labels that select the nodes that have storage: without one of them there is no free space.
    #[must_use]
    pub fn selecting(self, selection: NodeSelection) -> Self {
        Self { selection, ..self }
    }

    /// Sets whether sizes and free space are extended resources of the Node, too.
    #[must_use]
    pub fn showing_resources(self, shows_resources: bool) -> Self {
        Self { shows_resources, ..self }
    }

    /// Subscribes to the state of the device classes, as lvmd reported it last.
    pub fn device_classes(&self) -> watch::Receiver<DeviceClasses> {
        self.device_classes.subscribe()
    }

    /// Subscribes to the Node object; `None` while there is none.
    pub(crate) fn node_object(&self) -> watch::Receiver<Option<PartialObjectMeta<Node>>> {
        self.node_object.subscribe()
    }

    /// Starts the tasks. The receiver gets a message each time that lvmd has come back, since work that failed while
    /// it was away can go on.
    pub fn start(self, client: Client, tasks: &Tasks, shutdown: &CancellationToken) -> mpsc::Receiver<()> {
        let (returned, returns) = mpsc::channel(1);
        let (capacity, capacities) = watch::channel::<Option<NodeCapacity>>(None);
        let nodes = self.node_object.subscribe();
        let nodes_api = Api::all(client.clone());
        if self.shows_resources {
            let resources = ExtendedResources::new(self.flavor, self.selection.clone(), self.node.clone());
            resources.start(Api::all(client.clone()), self.device_classes.subscribe(), RETRY, tasks, shutdown);
        }

        let receivers = Receivers { gauges: self.gauges, device_classes: self.device_classes, capacity, returned };
        tasks.spawn("free space of lvmd", until(shutdown.clone(), lvmd_watch::follow(self.lvmd, receivers, RETRY)));
        tasks.spawn(
            "own Node",
            node_watch::follow(Api::all(client), self.node.clone(), self.node_object, shutdown.clone()),
        );
        let publication = Publication { flavor: self.flavor, selection: self.selection, node: self.node };
        let writing = publication.keep_annotated(nodes_api, capacities, nodes, RETRY);
        tasks.spawn("capacity of the Node", until(shutdown.clone(), writing));
        returns
    }
}

/// Runs work until it ends or `shutdown` is cancelled.
async fn until(shutdown: CancellationToken, work: impl Future<Output = ()>) -> anyhow::Result<()> {
    shutdown.run_until_cancelled(work).await;
    Ok(())
}
