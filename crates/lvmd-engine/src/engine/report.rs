//! Stores what LVM reports on a locked volume group.

use lvm::{Changed, Host, VolumeGroup};

use super::group::Group;
use super::state::LockedGroup;
use super::storage_health;
use super::unproven_classes::expect_proofs;

impl<R: Host> LockedGroup<R> {
    /// Stores the report that came with a change, and returns the result of the change.
    pub(super) fn store_outcome(&mut self, changed: Changed) -> Result<(), lvm::Error> {
        match (changed.group, &changed.done) {
            (Some(after), _) => self.store_report(Some(after)),
            (None, Err(error)) => self.shared().mark_stale(self, error),
            (None, Ok(())) => {}
        }
        changed.done
    }

    /// Stores a report; `None` if LVM reports that the group does not exist.
    pub(super) fn store_report(&mut self, report: Option<VolumeGroup>) {
        if let Some(report) = &report {
            let missing_before = self.cached().map_or(0, |before| before.missing_pvs);
            storage_health::log_missing_pvs(&self.name, missing_before, report.missing_pvs);
        }
        let is_new = self.cached().is_none();
        Group::store_report(self, self.guard(), report);
        if is_new {
            expect_proofs(self, &self.shared().classes());
        }
        self.shared().publish();
    }
}
