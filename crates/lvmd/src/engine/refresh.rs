//! Refreshes the cache of a volume group: from a report of LVM, or from the outcome of a change.

use std::sync::Arc;

use lvm::{Changed, Host, VolumeGroup};
use tokio::time::Instant;

use super::device_snapshot::Freshness;
use super::group::{Failure, Group};
use super::proof::expect_proofs;
use super::state::Engine;
use super::storage_health;
use crate::error::Error;
use crate::tags::VacatedExtents;

impl<R: Host> Engine<R> {
    /// Returns the present state of a group: the cache if the metadata headers on the disks prove it, otherwise a new
    /// report of LVM. The caller holds the group's lock.
    pub(super) async fn current(&self, group: &Group) -> Result<Arc<VolumeGroup>, Error> {
        if group.compare_metadata(&self.devices()).await != Freshness::Current {
            self.refresh(group).await?;
        }
        let known = group.try_cached()?;
        if known.missing_pvs == 0 && known.pvs.iter().any(|pv| pv.allocatable && VacatedExtents::are_on(pv)) {
            self.forbid_allocation(group, &known).await?;
            return group.try_cached();
        }
        Ok(known)
    }

    /// Keeps LVM from taking extents of physical volumes with extents that have to be wiped before: lvmd was killed
    /// when it was about to have them wiped, or an administrator has run `pvchange -x y`.
    async fn forbid_allocation(&self, group: &Group, known: &VolumeGroup) -> Result<(), Error> {
        for pv in known.pvs.iter().filter(|pv| pv.allocatable && VacatedExtents::are_on(pv)) {
            self.inner.lvm.change_pv(&group.name, &pv.path, false, &[], &[]).await?;
        }
        Ok(self.refresh(group).await?)
    }

    /// Has LVM report on a group, and stores the report. The caller holds the group's lock, so that no change of lvmd's
    /// own comes in between.
    pub(super) async fn refresh(&self, group: &Group) -> Result<(), lvm::Error> {
        let snapshot = group.take_device_snapshot(&self.devices()).await.ok();
        match self.inner.lvm.volume_group(&group.name).await {
            Ok(report) => {
                self.store_report(group, Some(report));
                self.resume_suspended(group).await;
            }
            Err(lvm::Error::GroupNotFound(vg)) => {
                if self.classes().requires(&vg) || group.cached().is_some() {
                    tracing::error!(%vg, "volume group not found; its capacity is 0");
                }
                self.store_report(group, None);
            }
            Err(error) => {
                self.mark_stale(group, &error);
                return Err(error);
            }
        }
        if let Some(snapshot) = snapshot {
            group.store_device_snapshot(snapshot);
        }
        Ok(())
    }

    /// Refreshes a group for a caller that does not hold its lock, unless somebody else did while this caller waited
    /// for it.
    pub(super) async fn lock_and_refresh(&self, group: &Group) -> Result<(), Error> {
        let asked = Instant::now();
        let _lock = group.lock().await;
        if group.age() >= asked.elapsed() {
            self.refresh(group).await?;
        }
        Ok(())
    }

    /// Stores the report that came with a change, and returns the result of the change.
    pub(super) fn store_outcome(&self, group: &Group, changed: Changed) -> Result<(), lvm::Error> {
        match (changed.group, &changed.done) {
            (Some(after), _) => self.store_report(group, Some(after)),
            (None, Err(error)) => self.mark_stale(group, error),
            (None, Ok(())) => {}
        }
        changed.done
    }

    fn store_report(&self, group: &Group, report: Option<VolumeGroup>) {
        if let Some(report) = &report {
            let missing_before = group.cached().map_or(0, |before| before.missing_pvs);
            storage_health::log_missing_pvs(&group.name, missing_before, report.missing_pvs);
        }
        let is_new = group.cached().is_none();
        group.store_report(report);
        if is_new {
            expect_proofs(group, &self.classes());
        }
        self.publish();
    }

    /// Notes that LVM could not report on a group.
    pub(super) fn mark_stale(&self, group: &Group, error: &lvm::Error) {
        let failure = if matches!(error, lvm::Error::Timeout { .. }) {
            Failure::Slow
        } else if error.is_unusable_group() {
            Failure::UnusableGroup
        } else {
            Failure::Other
        };
        if group.mark_stale(&error.to_string(), failure) {
            let vg = &group.name;
            tracing::error!(%vg, %error, "cannot read the volume group; what lvmd knows of it may be outdated");
        }
        self.publish();
    }
}
