//! Refreshes the cache of a locked volume group by a report of LVM.

use std::sync::Arc;

use lvm::{Host, VolumeGroup};
use lvmd_config::tags::VacatedExtents;
use tokio::time::Instant;

use super::device_snapshot::Freshness;
use super::state::{GroupHandle, LockedGroup};
use super::suspended::resume_suspended;
use crate::error::Error;

impl<R: Host> LockedGroup<R> {
    /// Returns the present state of the group: the cache if the metadata headers on the disks prove it, otherwise a new
    /// report of LVM.
    pub(super) async fn current(&mut self) -> Result<Arc<VolumeGroup>, Error> {
        if self.compare_metadata(&self.shared().devices()).await != Freshness::Current {
            self.refresh().await?;
        }
        let known = self.try_cached()?;
        if known.missing_pvs == 0 && known.pvs.iter().any(|pv| pv.allocatable && VacatedExtents::are_on(pv)) {
            self.forbid_allocation(&known).await?;
            return self.try_cached();
        }
        Ok(known)
    }

    /// Keeps LVM from taking extents of physical volumes with extents that have to be wiped before: lvmd was killed
    /// when it was about to have them wiped, or an administrator has run `pvchange -x y`.
    async fn forbid_allocation(&mut self, known: &VolumeGroup) -> Result<(), Error> {
        for pv in known.pvs.iter().filter(|pv| pv.allocatable && VacatedExtents::are_on(pv)) {
            self.lvm().change_pv(&known.name, &pv.path, false, &[], &[]).await?;
        }
        Ok(self.refresh().await?)
    }

    /// Has LVM report on the group, and stores the report.
    pub(super) async fn refresh(&mut self) -> Result<(), lvm::Error> {
        let snapshot = self.take_device_snapshot(&self.shared().devices()).await.ok();
        match self.lvm().volume_group(&self.name).await {
            Ok(report) => {
                self.store_report(Some(report));
                resume_suspended(self).await;
            }
            Err(lvm::Error::GroupNotFound(vg)) => {
                if self.shared().classes().requires(&vg) || self.cached().is_some() {
                    tracing::error!(%vg, "volume group not found; its capacity is 0");
                }
                self.store_report(None);
            }
            Err(error) => {
                self.shared().mark_stale(self, &error);
                return Err(error);
            }
        }
        if let Some(snapshot) = snapshot {
            self.store_device_snapshot(self.guard(), snapshot);
        }
        Ok(())
    }
}

/// Locks a group and refreshes it, unless another task refreshed it while this one waited for the lock.
pub(super) async fn lock_and_refresh<R: Host>(group: &GroupHandle<R>) -> Result<(), Error> {
    let asked = Instant::now();
    let mut group = group.lock().await;
    if group.age() >= asked.elapsed() {
        group.refresh().await?;
    }
    Ok(())
}
