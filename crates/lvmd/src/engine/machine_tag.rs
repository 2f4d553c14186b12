//! Tags the volume groups of device classes with the machine that works in them. Another machine that sees the same
//! disks, or a copy of them, leaves such a group alone.

use lvm::Host;
use tokio::sync::OwnedMutexGuard;
use topolvm_runtime::error_chain;

use super::group::Group;
use super::state::Engine;

impl<R: Host> Engine<R> {
    /// Tags a group that a device class uses and no machine has tagged yet. Returns whether it tried. A failure changes
    /// nothing for the classes of the group.
    pub(super) async fn tag_with_machine(&self, group: &Group, _lock: &OwnedMutexGuard<()>) -> bool {
        let Some(tag) = self.inner.lvm.owner() else { return false };
        let is_untagged = group.usable().is_some_and(|known| !known.has_tag(tag));
        if !is_untagged || !self.is_used(group) {
            return false;
        }
        let vg = &group.name;
        match self.inner.lvm.tag_group(vg, tag).await {
            Ok(()) => {
                tracing::info!(%vg, %tag, "tagged the volume group as that of this machine");
                // A failure makes the group stale, and is logged there
                drop(self.refresh(group).await);
            }
            Err(error) => {
                let error = error_chain(&error);
                tracing::warn!(%vg, error, "cannot tag the volume group as that of this machine; lvmd tries again later");
            }
        }
        true
    }
}
