//! Writes lvmd's report of the storage to the status of the `NodeStorage` of this node.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{PatchParams, PostParams};
use kube::core::PartialObjectMeta;
use tokio::sync::watch;
use tokio::sync::watch::error::RecvError;
use topolvm_api::{ApiFlavor, NodeSelection, NodeState, NodeStorage, NodeStorageStatus};
use topolvm_kube::{json_patch, node_reference, replace_status};
use topolvm_runtime::{Backoff, error_chain};

use crate::condition::{ready_condition, stopped_condition};
use crate::disk_events::DiskEvents;
use crate::lvmd_watch::Reading;
use crate::object_watch::Object;

type NodeMetadata = PartialObjectMeta<Node>;

/// Shortest time between two writes. Each volume of a burst changes the free space, and nothing waits for the object.
const WRITE_INTERVAL: Duration = Duration::from_secs(5);

/// Time that the last write has while the agent stops.
const STOP_DEADLINE: Duration = Duration::from_secs(2);

/// The publication of a node's storage.
#[derive(Debug)]
pub(crate) struct Publication {
    pub(crate) flavor: ApiFlavor,
    pub(crate) selection: NodeSelection,
    /// Name of the Node.
    pub(crate) node: String,
    pub(crate) now: fn() -> Timestamp,
    pub(crate) disk_events: DiskEvents,
}

impl Publication {
    /// Keeps the object up to date. Ends when one of the senders is gone.
    ///
    /// The status is compared with that of the object as the watch shows it. If that is older than our own last write,
    /// its event is still to come, and the loop runs again.
    pub(crate) async fn keep_written(
        &mut self,
        api: &Api<NodeStorage>,
        mut readings: watch::Receiver<Option<Reading>>,
        mut nodes: watch::Receiver<Option<NodeMetadata>>,
        mut objects: watch::Receiver<Option<Object>>,
        mut backoff: Backoff,
    ) {
        let mut is_logged = false;
        loop {
            let reading = readings.borrow_and_update().clone();
            let node = nodes.borrow_and_update().clone();
            let object = objects.borrow_and_update().clone();
            let written = match (reading, node, object) {
                (Some(reading), Some(node), Some(object)) => self.write(api, reading, &node, object).await,
                _ => Ok(false),
            };
            match written {
                Ok(is_written) => {
                    backoff.reset();
                    is_logged = false;
                    if is_written {
                        tokio::time::sleep(WRITE_INTERVAL).await;
                    }
                }
                Err(error) => {
                    self.log_failure(&error, is_logged);
                    is_logged = true;
                    // Changes wait, too: one that is refused would be tried again with each of them
                    tokio::time::sleep(backoff.fail()).await;
                    continue;
                }
            }
            if wait_for_change(&mut readings, &mut nodes, &mut objects).await.is_err() {
                return;
            }
        }
    }

    /// Writes into the condition of the object that the agent stops: without an agent nothing updates its status.
    pub(crate) async fn write_stopped(&self, api: &Api<NodeStorage>, object: Object) {
        let Some(object) = object.filter(|object| !is_deleted(object)) else { return };
        let Some(before) = object.status else { return };
        let condition = stopped_condition(&before.conditions, (self.now)());
        let patch = replace_status(&object.metadata, &NodeStorageStatus { conditions: vec![condition], ..before });
        let (patch, parameters) = (json_patch(patch), PatchParams::default());
        let writing = api.patch_status(&self.node, &parameters, &patch);
        let error = match tokio::time::timeout(STOP_DEADLINE, writing).await {
            Ok(Ok(_)) => return,
            Ok(Err(error)) => error_chain(&error),
            Err(late) => error_chain(&late),
        };
        tracing::info!(node = self.node, error, "cannot write into the NodeStorage that the agent stops");
    }

    fn log_failure(&self, error: &kube::Error, is_logged: bool) {
        let (node, error) = (&self.node, error_chain(error));
        if is_logged {
            tracing::debug!(node, error, "cannot write the node's NodeStorage yet");
        } else {
            tracing::warn!(node, error, "cannot write the node's NodeStorage; trying again");
        }
    }

    /// Creates the object if it does not exist, writes its status if that differs, and publishes Events of changed
    /// disks. Returns whether anything was written.
    async fn write(
        &mut self,
        api: &Api<NodeStorage>,
        reading: Reading,
        node: &NodeMetadata,
        object: Object,
    ) -> kube::Result<bool> {
        if !self.is_published(node) || object.as_ref().is_some_and(|object| is_deleted(object)) {
            return Ok(false);
        }
        let before = object.as_ref().and_then(|object| object.status.clone()).unwrap_or_default();
        let Some(status) = self.status(reading, &before, object.is_some()) else { return Ok(false) };
        if object.is_some() && before == status {
            return Ok(false);
        }
        let written = self.write_status(api, node, object, &status).await;
        match written {
            // It was created or deleted meanwhile: the watch is about to show it
            Err(kube::Error::Api(answer)) if matches!(answer.code, 404 | 409) => {
                tracing::debug!(node = self.node, reason = answer.message, "the NodeStorage is another one by now");
                Ok(false)
            }
            written => {
                written?;
                Box::pin(self.disk_events.publish(&node_reference(node), &before, &status)).await;
                Ok(true)
            }
        }
    }

    /// Returns whether the Node has an object: not while it is being deleted, which takes the object with it, nor while
    /// it has neither a selecting label nor volumes.
    fn is_published(&self, node: &NodeMetadata) -> bool {
        let state = self.selection.state(node.metadata.labels.as_ref());
        node.metadata.deletion_timestamp.is_none() && state != NodeState::Excluded
    }

    /// Returns the status to write. While lvmd has not reported anything it is that of the object, if there is one,
    /// with another condition.
    fn status(&self, reading: Reading, before: &NodeStorageStatus, exists: bool) -> Option<NodeStorageStatus> {
        let Reading { status, knows_disks, is_connected } = reading;
        let mut status = status.or_else(|| exists.then(|| before.clone()))?;
        if !knows_disks {
            status.keep_disks_of(before);
        }
        let condition = ready_condition(&status, is_connected, &before.conditions, (self.now)());
        Some(NodeStorageStatus { conditions: vec![condition], ..status })
    }

    async fn write_status(
        &self,
        api: &Api<NodeStorage>,
        node: &NodeMetadata,
        object: Object,
        status: &NodeStorageStatus,
    ) -> kube::Result<()> {
        let metadata = if let Some(object) = object {
            object.metadata
        } else {
            let uid = node.metadata.uid.as_deref().unwrap_or_default();
            let object = NodeStorage::new(self.flavor, &self.node, uid);
            api.create(&PostParams::default(), &object).await?.metadata
        };
        let patch = json_patch(replace_status(&metadata, status));
        api.patch_status(&self.node, &PatchParams::default(), &patch).await?;
        tracing::debug!(node = self.node, "wrote the node's NodeStorage");
        Ok(())
    }
}

fn is_deleted(object: &NodeStorage) -> bool {
    object.metadata.deletion_timestamp.is_some()
}

/// Waits until something changes. An error if one of the senders is gone.
async fn wait_for_change(
    readings: &mut watch::Receiver<Option<Reading>>,
    nodes: &mut watch::Receiver<Option<NodeMetadata>>,
    objects: &mut watch::Receiver<Option<Object>>,
) -> Result<(), RecvError> {
    tokio::select! {
        changed = readings.changed() => changed,
        changed = nodes.changed() => changed,
        changed = objects.changed() => changed,
    }
}
