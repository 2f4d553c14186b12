//! Publishes the storage of this node as its `NodeStorage` object: volume groups with their disks, device classes, thin
//! pools and what is wrong are followed in lvmd and written to the status. What becomes of disks is told in Events.
//! What administrators wish of disks in annotations of the object is handed to lvmd, and it is told the labels of the
//! Node.
//!
//! Tasks that retry for ever. Nothing else of the agent depends on the object: a cluster whose manifests lack it, or an
//! lvmd that does not tell, costs one line in the log.

mod class_events;
mod condition;
mod disk_events;
mod disks;
mod evacuation_events;
mod lvmd_watch;
mod node_labels;
mod object_watch;
mod status;
mod wishes;
mod writer;

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::core::PartialObjectMeta;
use kube::{Api, Client};
use tokio::sync::watch;
use topolvm_api::{ApiFlavor, NodeSelection};
use topolvm_runtime::{Backoff, CancellationToken, Tasks};

use crate::events::Events;
use crate::lvmd_client::LvmdClient;
use disk_events::DiskEvents;
use wishes::WishKeeper;
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
    /// The lvmd that tells of the storage.
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
        let events = Events::new(flavor, &node, client.clone());
        let disk_events = DiskEvents::new(events.clone());
        let api = Api::all_with(client, &flavor);
        let (reading, readings) = watch::channel(None);
        let (object, objects) = watch::channel(None);
        let (told, wishes) = watch::channel(None);
        let until_shutdown = shutdown.clone();
        let following = lvmd_watch::follow(lvmd.clone(), nodes.clone(), reading, LVMD_RETRY);
        tasks.spawn("storage of lvmd", async move {
            until_shutdown.run_until_cancelled(following).await;
            Ok(())
        });
        let watching = object_watch::follow(api.clone(), node.clone(), object, shutdown.clone());
        tasks.spawn("own NodeStorage", watching);
        let keeper = WishKeeper::new(flavor, lvmd, api.clone(), events, told);
        let until_shutdown = shutdown.clone();
        let heeding = keeper.heed(readings.clone(), nodes.clone(), objects.clone());
        tasks.spawn("wishes about disks", async move {
            until_shutdown.run_until_cancelled(heeding).await;
            Ok(())
        });
        let publication = Publication { flavor, selection, node, now, disk_events };
        let until_shutdown = shutdown.clone();
        tasks.spawn("storage of the Node", async move {
            let writing = publication.keep_written(api, readings, nodes, objects, wishes, WRITE_RETRY);
            until_shutdown.run_until_cancelled(writing).await;
            Ok(())
        });
    }
}
