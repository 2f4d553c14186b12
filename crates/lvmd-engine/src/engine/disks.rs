//! The operations on the disks of volume groups.

use std::sync::Arc;

use futures::future::BoxFuture;
use lvm::{Host, Tag, VgName};
use lvmd_config::tags::EvacuationRequest;
use lvmd_config::{DiskReport, NodeLabels};
use tokio::sync::{mpsc, oneshot, watch};
use topolvm_runtime::error_chain;

use super::Engine;
use super::evacuation::{begin_evacuation, end_evacuation};
use super::replacement::replace_in_group;
use super::state::LockedGroup;
use crate::disk_addition::DiskAddition;
use crate::error::Error;

/// The changes of the disks of a volume group, which is locked. It may not exist yet.
#[derive(Debug)]
pub struct LockedDisks<'a, R> {
    group: &'a LockedGroup<R>,
}

impl<R: Host> LockedDisks<'_, R> {
    /// Creates the group with this tag on a disk; see [`lvm::Lvm::create_group`].
    pub async fn create_group(&self, tag: &Tag, disk: &str) -> Result<(), lvm::Error> {
        self.group.lvm().create_group(&self.group.name, tag, disk).await
    }

    /// Adds a disk to the group; see [`lvm::Lvm::extend_group`].
    pub async fn extend_group(&self, disk: &str) -> Result<(), lvm::Error> {
        self.group.lvm().extend_group(&self.group.name, disk).await
    }

    /// Makes a physical volume as large as its disk; see [`lvm::Lvm::resize_disk`].
    pub async fn resize_disk(&self, disk: &str) -> Result<(), lvm::Error> {
        self.group.lvm().resize_disk(disk).await
    }
}

impl<R: Host> Engine<R> {
    /// Begins to empty a physical volume, or changes how. While the other disks lack space for all of it the request is
    /// recorded and nothing is moved: a disk that joins the group is for what waits here, and not for a thin pool.
    pub async fn evacuate(&self, vg: &VgName, uuid: String, request: EvacuationRequest) -> Result<(), Error> {
        let begin = async move |mut group: LockedGroup<R>| begin_evacuation(&mut group, &uuid, request).await;
        self.shared.handle(self.shared.group(vg)?).with_lock(begin).await
    }

    /// Ends the evacuation of a physical volume: what was moved stays where it is.
    pub async fn stop_evacuation(&self, vg: &VgName, uuid: String) -> Result<(), Error> {
        let end = async move |mut group: LockedGroup<R>| end_evacuation(&mut group, &uuid).await;
        self.shared.handle(self.shared.group(vg)?).with_lock(end).await
    }

    /// Rebuilds the mirrors that have lost this missing physical volume, and forgets it. Refused, without a change,
    /// when anything else was on it.
    pub async fn replace_missing_disk(&self, vg: &VgName, uuid: String) -> Result<(), Error> {
        let group = self.shared.handle(self.shared.group(vg)?);
        let move_lock = group.lock_moves_in_time().await?;
        let replace = async move |mut group: LockedGroup<R>| replace_in_group(&mut group, &move_lock, &uuid).await;
        group.with_lock(replace).await
    }

    /// Has the discovery of disks add a disk to its disk group.
    pub async fn add_disk(&self, path: String, stable_name: String) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        let request = DiskAddition { path, stable_name, answer };
        self.shared.disk_additions.send(request).await.map_err(|_| Error::Stopping)?;
        answered.await.map_err(|_| Error::Stopping)?
    }

    /// Returns the disks that clients want to be added, to the one who adds them.
    pub fn take_disk_additions(&self) -> Option<mpsc::Receiver<DiskAddition>> {
        self.shared.wanted_disks.lock().take()
    }

    /// Takes over the labels of the node, for disk groups that are for some nodes only. They are stored nowhere else:
    /// they may have changed when the next process starts.
    pub fn set_node_labels(&self, labels: NodeLabels) {
        self.shared.node_labels.send_if_modified(|known| {
            let differs = known.as_deref() != Some(&labels);
            if differs {
                *known = Some(Arc::new(labels));
            }
            differs
        });
    }

    /// Subscribes to the labels of the node; `None` until a client has sent them.
    pub fn node_labels(&self) -> watch::Receiver<Option<Arc<NodeLabels>>> {
        self.shared.node_labels.subscribe()
    }

    /// Runs a change of the disks of a volume group, which may not exist yet, and has LVM report on the group
    /// afterwards.
    pub async fn change_disks<T: Send + 'static>(
        &self,
        vg: &VgName,
        change: impl for<'a> FnOnce(LockedDisks<'a, R>) -> BoxFuture<'a, T> + Send + 'static,
    ) -> Result<T, Error> {
        let change = async move |mut group: LockedGroup<R>| {
            let result = change(LockedDisks { group: &group }).await;
            if let Err(error) = group.refresh().await {
                let error = error_chain(&error);
                tracing::warn!(vg = %group.name, error, "cannot read a volume group after a change of its disks");
            }
            Ok(result)
        };
        self.shared.handle(self.shared.group(vg)?).with_lock(change).await
    }

    /// Stores the report of a scan of the disks, and publishes it with the storage report.
    pub fn publish_disks(&self, report: Arc<DiskReport>) {
        *self.shared.disks.write() = Some(report);
        self.shared.publish();
    }
}
