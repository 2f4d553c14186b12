//! Volumes that wait for ever. LVM suspends a volume for a moment while it takes a snapshot of it or grows it; an LVM that is
//! killed then leaves whoever uses the volume waiting.

use lvm::{Host, LvName, State};
use topolvm_runtime::error_chain;

use super::Engine;
use super::group::Group;
use crate::marks;

impl<R: Host> Engine<R> {
    /// Lets volumes go on that were left suspended. LVM has the lock of the group for as long as it suspends something, and for
    /// a report, so what a report shows as suspended nobody will let go on. Only lvmd's own: somebody may have suspended
    /// another one on purpose. The caller has the group's turn.
    pub(super) async fn resume_suspended(&self, group: &Group) {
        let Some(known) = group.get() else { return };
        let suspended =
            known.volumes.iter().filter(|volume| marks::is_managed(volume) && volume.attr.state() == State::Suspended);
        let names: Vec<LvName> = suspended.filter_map(|volume| volume.name.parse().ok()).collect();
        for name in names {
            tracing::warn!(vg = %group.name, %name, "an LVM that was killed left this volume suspended; it goes on now");
            if let Err(error) = self.take(group, self.inner.lvm.refresh(&group.name, &name).await) {
                let error = error_chain(&error);
                tracing::error!(vg = %group.name, %name, error, "a volume stays suspended and all who use it wait; see `dmsetup info`");
            }
        }
    }
}
