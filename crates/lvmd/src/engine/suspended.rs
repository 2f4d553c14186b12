//! Resumes volumes that a killed LVM left suspended. LVM suspends a volume for a moment while it takes a snapshot of it
//! or grows it; when it is killed just then, every process that uses the volume waits for ever.

use lvm::{Host, LvName, State};
use topolvm_runtime::error_chain;

use super::group::Group;
use super::state::Engine;
use crate::tags;

impl<R: Host> Engine<R> {
    /// Resumes the suspended volumes that lvmd created; others may be suspended on purpose. LVM holds the lock of the
    /// group for as long as it suspends something, and for a report, so nobody else will resume what a report shows as
    /// suspended. The caller holds the group's lock.
    pub(super) async fn resume_suspended(&self, group: &Group) {
        let Some(known) = group.cached() else { return };
        let suspended =
            known.volumes.iter().filter(|volume| tags::is_managed(volume) && volume.attr.state() == State::Suspended);
        let names: Vec<LvName> = suspended.filter_map(|volume| volume.name.parse().ok()).collect();
        for name in names {
            tracing::warn!(vg = %group.name, %name, "resuming a volume that a killed LVM left suspended");
            if let Err(error) = self.store_outcome(group, self.inner.lvm.refresh(&group.name, &name).await) {
                let error = error_chain(&error);
                let vg = &group.name;
                tracing::error!(%vg, %name, error, "cannot resume a volume; all who use it wait, see `dmsetup info`");
            }
        }
    }
}
