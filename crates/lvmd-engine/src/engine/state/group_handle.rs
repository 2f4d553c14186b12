//! A volume group that is not locked: what is known of it, and the ways to lock it.

use std::ops::Deref;
use std::sync::Arc;

use lvm::{Host, LvName};
use tracing::Instrument as _;

use super::Shared;
use super::locked_group::LockedGroup;
use super::move_lock::MoveLock;
use crate::engine::group::Group;
use crate::error::Error;
use crate::process_count;

/// A volume group with the state that all operations share. Clones are of the same group.
#[derive(Debug)]
pub(in crate::engine) struct GroupHandle<R> {
    shared: Arc<Shared<R>>,
    group: Arc<Group>,
}

impl<R> Clone for GroupHandle<R> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), group: Arc::clone(&self.group) }
    }
}

impl<R> Deref for GroupHandle<R> {
    type Target = Group;

    fn deref(&self) -> &Group {
        &self.group
    }
}

impl<R: Host> GroupHandle<R> {
    pub(super) fn new(shared: Arc<Shared<R>>, group: Arc<Group>) -> Self {
        Self { shared, group }
    }

    pub(in crate::engine) fn shared(&self) -> &Arc<Shared<R>> {
        &self.shared
    }

    /// Waits for the lock under which the group is changed.
    pub(in crate::engine) async fn lock(&self) -> LockedGroup<R> {
        let guard = self.group.change_lock.lock().await;
        LockedGroup::new(Arc::clone(&self.shared), Arc::clone(&self.group), guard)
    }

    /// Takes the same lock, unless another task holds it.
    pub(in crate::engine) fn try_lock(&self) -> Option<LockedGroup<R>> {
        let guard = self.group.change_lock.try_lock()?;
        Some(LockedGroup::new(Arc::clone(&self.shared), Arc::clone(&self.group), guard))
    }

    /// Waits for the lock of the group and runs a change under it. The change runs to its end even if the caller stops
    /// waiting: no record would show what an interrupted change left behind.
    pub(in crate::engine) async fn with_lock<
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
    >(
        &self,
        change: impl FnOnce(LockedGroup<R>) -> F,
    ) -> Result<T, Error> {
        let changing = change(self.lock().await);
        let counted = process_count::count_for_request(changing);
        self.shared.tasks.finish(counted.in_current_span()).await.map_err(Error::Interrupted)?
    }

    /// Does the same while no part of this volume is being moved to another disk. LVM does not change one that is, and
    /// a mirror that grows might get extents on the disk to which another of its images is about to be moved.
    pub(in crate::engine) async fn with_idle_volume<T, F, C>(&self, name: &LvName, change: C) -> Result<T, Error>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Error>> + Send + 'static,
        C: FnOnce(LockedGroup<R>) -> F + Clone + Send + 'static,
    {
        let (volume, first) = (name.clone(), change.clone());
        let attempt = async move |group: LockedGroup<R>| {
            if group.cached().is_some_and(|known| group.evacuation.is_moving(&known, volume.as_str())) {
                return Ok(None);
            }
            match first(group).await {
                // The last piece of an evacuation that was stopped, or a pvmove of another program
                Err(Error::Lvm(lvm::Error::Locked(_))) => Ok(None),
                changed => changed.map(Some),
            }
        };
        if let Some(changed) = self.with_lock(attempt).await? {
            return Ok(changed);
        }
        let move_lock = self.lock_moves_in_time().await?;
        let changing = async move |group: LockedGroup<R>| {
            let changed = change(group).await;
            drop(move_lock);
            changed
        };
        self.with_lock(changing).await
    }

    /// Waits until no piece is being moved, and keeps the next from being begun.
    pub(in crate::engine) async fn lock_moves(&self) -> MoveLock<R> {
        let guard = self.group.evacuation.lock_moves().await;
        MoveLock::new(Arc::clone(&self.shared), Arc::clone(&self.group), guard)
    }

    /// Does the same for a caller that does not wait for a disk that hangs.
    pub(in crate::engine) async fn lock_moves_in_time(&self) -> Result<MoveLock<R>, Error> {
        let guard = self.group.evacuation.lock_moves_in_time(&self.group.name).await?;
        Ok(MoveLock::new(Arc::clone(&self.shared), Arc::clone(&self.group), guard))
    }
}
