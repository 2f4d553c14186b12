//! Publishes the storage of this node as its `NodeStorage` object: volume groups with their disks, device classes, thin
//! pools and what is wrong are followed in lvmd and written to the status. Changes of disks are published as Events.
//! lvmd gets the operations that administrators request in `DiskOperation` objects, and the labels of the Node.
//!
//! Tasks that retry forever. Nothing else of the agent depends on the objects: a cluster whose manifests lack them, or
//! an lvmd that does not report its storage, costs one line in the log.

mod class_events;
mod condition;
mod disk_events;
mod disk_operations;
mod disks;
mod evacuation_events;
mod events;
mod lvmd_watch;
mod node_labels;
mod object_watch;
mod operation_objects;
mod status;
mod writer;

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::core::PartialObjectMeta;
use kube::{Api, Client};
use lvmd_client::LvmdClient;
use tokio::sync::watch;
use topolvm_api::{ApiFlavor, NodeSelection};
use topolvm_runtime::{Backoff, CancellationToken, Tasks};

use crate::events::Events;
use disk_events::DiskEvents;
use disk_operations::DiskOperations;
use writer::Publication;

/// Back-off while lvmd is away.
const LVMD_RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// Back-off of writes that fail. What is wrong may be wrong on a thousand nodes.
const WRITE_RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(5));

/// Publishes the storage of a node.
#[derive(Clone, Debug)]
pub struct StoragePublisher {
    /// API group of the object.
    pub flavor: ApiFlavor,
    /// Name of the Node and of the object.
    pub node: String,
    /// The labels that select the nodes that have storage.
    pub selection: NodeSelection,
    /// The lvmd that reports the storage.
    pub lvmd: LvmdClient,
    /// The clock.
    pub now: fn() -> Timestamp,
}

impl StoragePublisher {
    /// Starts the tasks. `nodes` is the Node object, which owns the other one.
    pub fn start(
        self,
        client: Client,
        nodes: watch::Receiver<Option<PartialObjectMeta<Node>>>,
        tasks: &Tasks,
        shutdown: &CancellationToken,
    ) {
        let Self { flavor, node, selection, lvmd, now } = self;
        let events = Events::new(&node, client.clone());
        let disk_events = DiskEvents::new(events.clone());
        let api = Api::all_with(client.clone(), &flavor);
        let (reading, readings) = watch::channel(None);
        let (object, objects) = watch::channel(None);
        let until_shutdown = shutdown.clone();
        let following = lvmd_watch::follow(lvmd.clone(), nodes.clone(), reading, LVMD_RETRY);
        tasks.spawn("storage of lvmd", async move {
            until_shutdown.run_until_cancelled(following).await;
            Ok(())
        });
        let watching = object_watch::follow(api.clone(), node.clone(), object, shutdown.clone());
        tasks.spawn("own NodeStorage", watching);
        let operations = DiskOperations::new(flavor, client.clone(), lvmd, events, now);
        operations.start(client, node.clone(), readings.clone(), nodes.clone(), tasks, shutdown);
        let mut publication = Publication { flavor, selection, node, now, disk_events };
        let until_shutdown = shutdown.clone();
        tasks.spawn("storage of the Node", async move {
            let writing = publication.keep_written(&api, readings, nodes, objects.clone(), WRITE_RETRY);
            until_shutdown.run_until_cancelled(writing).await;
            let last = objects.borrow().clone().flatten();
            publication.write_stopped(&api, last).await;
            Ok(())
        });
    }
}
