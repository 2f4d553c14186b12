//! Runs a change under the lock of its volume group, to its end.

use std::sync::Arc;

use lvm::Host;
use tracing::Instrument as _;

use super::group::Group;
use super::state::Engine;
use crate::error::Error;
use crate::process_count;
use crate::tags::EvacuationWish;

impl<R: Host> Engine<R> {
    /// Waits for the lock of the group and runs a change under it. The change runs to its end also when the caller
    /// gives up waiting: nobody would know what a change that was cut off left behind.
    pub(super) async fn with_lock<T: Send + 'static, F: Future<Output = Result<T, Error>> + Send + 'static>(
        &self,
        group: Arc<Group>,
        change: impl FnOnce(Self, Arc<Group>) -> F,
    ) -> Result<T, Error> {
        let lock = group.lock().await;
        let change = change(self.clone(), group);
        let locked = async move {
            let result = change.await;
            drop(lock);
            result
        };
        let counted = process_count::count_for_request(locked);
        self.inner.tasks.finish(counted.in_current_span()).await.map_err(Error::Interrupted)?
    }

    /// Does the same while no volume of the group is being moved to another disk. LVM changes none that is, and a
    /// mirror that grows might get extents on the disk to which another of its images is about to be moved.
    pub(super) async fn with_volumes_at_rest<
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    >(
        &self,
        group: Arc<Group>,
        change: impl FnOnce(Self, Arc<Group>) -> F + Clone,
    ) -> Result<T, Error> {
        if !has_leaving_disks(&group) {
            let changed = self.with_lock(Arc::clone(&group), change.clone()).await;
            // The last piece of an evacuation that was stopped, or a pvmove of somebody else
            if !matches!(changed, Err(Error::Lvm(lvm::Error::Locked(_)))) {
                return changed;
            }
        }
        let _at_rest = group.evacuation.hold_still().await;
        self.with_lock(group, change).await
    }
}

fn has_leaving_disks(group: &Group) -> bool {
    group.cached().is_some_and(|known| known.pvs.iter().any(|pv| EvacuationWish::of(pv).is_some()))
}
