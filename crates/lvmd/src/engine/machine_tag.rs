//! Tags the volume groups of device classes with the machine that works in them. Another machine that sees the same
//! disks, or a copy of them, leaves such a group alone.

use std::sync::Arc;

use lvm::{Host, VolumeGroup};
use tokio::sync::OwnedMutexGuard;
use topolvm_runtime::error_chain;

use super::group::Group;
use super::state::Engine;

impl<R: Host> Engine<R> {
    /// Tags the groups of all device classes.
    pub(super) async fn tag_groups_with_machine(&self) {
        for group in self.groups().values() {
            let lock = group.lock().await;
            self.tag_with_machine(group, &lock).await;
        }
    }

    /// Tags a group that a device class uses and no machine has tagged yet. Returns whether it tried. A failure changes
    /// nothing for the classes of the group.
    pub(super) async fn tag_with_machine(&self, group: &Group, _lock: &OwnedMutexGuard<()>) -> bool {
        let Some(tag) = self.inner.lvm.owner() else { return false };
        // LVM would note in the metadata that a disk which is away is missing, also when it has come back
        let can_be_tagged = |known: &Arc<VolumeGroup>| !known.has_tag(tag) && known.missing_pvs == 0;
        let Some(known) = group.usable().filter(|known| can_be_tagged(known) && self.is_used(group)) else {
            return false;
        };
        let vg = &group.name;
        match self.inner.lvm.tag_group(&known, tag).await {
            Ok(()) => {
                tracing::info!(%vg, %tag, "tagged the volume group as that of this machine");
                // A failure makes the group stale, and is logged there
                drop(self.refresh(group).await);
            }
            Err(error) => {
                let error = error_chain(&error);
                tracing::warn!(%vg, error, "cannot tag the volume group as that of this machine; tried again later");
            }
        }
        true
    }
}
