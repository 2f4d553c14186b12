//! Runs a change under the lock of its volume group, to its end.

use std::sync::Arc;

use lvm::{Host, LvName};
use tracing::Instrument as _;

use super::group::Group;
use super::state::Engine;
use crate::error::Error;
use crate::process_count;

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

    /// Does the same while no part of this volume is being moved to another disk. LVM does not change one that is, and
    /// a mirror that grows might get extents on the disk to which another of its images is about to be moved.
    pub(super) async fn with_volume_at_rest<
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    >(
        &self,
        group: Arc<Group>,
        name: &LvName,
        change: impl FnOnce(Self, Arc<Group>) -> F + Clone,
    ) -> Result<T, Error> {
        let (volume, first) = (name.clone(), change.clone());
        let attempt = |engine: Self, group: Arc<Group>| {
            let changing = first(engine, Arc::clone(&group));
            async move {
                if group.cached().is_some_and(|known| group.evacuation.is_moving(&known, volume.as_str())) {
                    return Ok(None);
                }
                match changing.await {
                    // The last piece of an evacuation that was stopped, or a pvmove of somebody else
                    Err(Error::Lvm(lvm::Error::Locked(_))) => Ok(None),
                    changed => changed.map(Some),
                }
            }
        };
        if let Some(changed) = self.with_lock(Arc::clone(&group), attempt).await? {
            return Ok(changed);
        }
        let _at_rest = group.evacuation.hold_still(&group.name).await?;
        self.with_lock(group, change).await
    }
}
