//! Changes of the disks of a volume group, under its lock.

use std::sync::Arc;

use lvm::{Host, Lvm, VgName};
use tokio::sync::{mpsc, oneshot, watch};
use topolvm_runtime::error_chain;

use super::group::Group;
use super::state::Engine;
use crate::disk_addition::DiskAddition;
use crate::disk_group::NodeLabels;
use crate::error::Error;

impl<R: Host> Engine<R> {
    /// Has the discovery of disks add a disk to its disk group.
    pub(crate) async fn add_disk(&self, path: String, stable_name: String) -> Result<(), Error> {
        let (answer, answered) = oneshot::channel();
        let request = DiskAddition { path, stable_name, answer };
        self.inner.disk_additions.send(request).await.map_err(|_| Error::Stopping)?;
        answered.await.map_err(|_| Error::Stopping)?
    }

    /// Returns the disks that clients want to be added, to the one who adds them.
    pub(crate) fn take_disk_additions(&self) -> Option<mpsc::Receiver<DiskAddition>> {
        self.inner.wanted_disks.lock().take()
    }

    /// Takes over the labels of the node, for disk groups that are for some nodes only. They are stored nowhere else:
    /// what was so when this process last heard of it may be so no more when the next one starts.
    pub(crate) fn set_node_labels(&self, labels: NodeLabels) {
        self.inner.node_labels.send_if_modified(|known| {
            let differs = known.as_deref() != Some(&labels);
            if differs {
                *known = Some(Arc::new(labels));
            }
            differs
        });
    }

    /// Subscribes to the labels of the node; `None` until a client has told them.
    pub(crate) fn node_labels(&self) -> watch::Receiver<Option<Arc<NodeLabels>>> {
        self.inner.node_labels.subscribe()
    }

    /// Runs a change of the disks of a volume group, which may not be there yet, and looks at the group afterwards.
    pub(crate) async fn change_disks<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        vg: &VgName,
        change: impl FnOnce(Lvm<R>) -> F,
    ) -> Result<T, Error> {
        let changing = change(self.inner.lvm.clone());
        let locked = |engine: Self, group: Arc<Group>| async move {
            let result = changing.await;
            if let Err(error) = engine.refresh(&group).await {
                let error = error_chain(&error);
                tracing::warn!(vg = %group.name, error, "cannot look at a volume group after a change of its disks");
            }
            Ok(result)
        };
        self.with_lock(self.group(vg)?, locked).await
    }
}
