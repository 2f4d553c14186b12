//! Parts of a thin pool that a killed LVM left active without the pool: LVM refuses to activate the pool, and with that
//! all new volumes in it.

use lvm::Host;
use topolvm_runtime::error_chain;

use super::state::LockedGroup;

/// Deactivates the part because of which LVM failed with this error. Returns whether another attempt makes sense. What
/// an administrator has activated is left alone.
pub(super) async fn deactivate_blocking_part<R: Host>(group: &mut LockedGroup<R>, error: &lvm::Error) -> bool {
    let lvm::Error::PartIsActive { part, .. } = error else { return false };
    let vg = &group.name;
    match group.lvm().deactivate_left_part(vg, part).await {
        Ok(true) => {
            tracing::warn!(%vg, part, "deactivated a part of a thin pool that a killed LVM left active");
            true
        }
        Ok(false) => false,
        Err(error) => {
            let error = error_chain(&error);
            tracing::warn!(%vg, part, error, "cannot deactivate a part of a thin pool that a killed LVM left active");
            false
        }
    }
}
