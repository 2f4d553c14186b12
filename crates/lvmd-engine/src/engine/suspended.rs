//! Resumes volumes that a killed LVM left suspended. LVM suspends a volume for a moment while it takes a snapshot of it
//! or grows it; when it is killed just then, every process that uses the volume waits forever.

use lvm::{Host, LvName, State};
use lvmd_config::tags;
use topolvm_runtime::error_chain;

use super::interrupted_moves;
use super::state::LockedGroup;

/// Resumes the suspended volumes that lvmd created; others may be suspended deliberately. LVM holds its own lock of the
/// group for as long as it suspends something, and for a report, so no other LVM will resume what a report shows as
/// suspended.
pub(super) async fn resume_suspended<R: Host>(group: &mut LockedGroup<R>) {
    let Some(known) = group.cached() else { return };
    let suspended =
        known.volumes.iter().filter(|volume| tags::is_managed(volume) && volume.attr.state() == State::Suspended);
    let names: Vec<LvName> = suspended.filter_map(|volume| volume.name.parse().ok()).collect();
    if !names.is_empty() {
        // LVM would resume with tables that were loaded for a move, of which the metadata may know nothing
        interrupted_moves::resume(group.lvm(), group).await;
    }
    for name in names {
        let vg = &known.name;
        tracing::warn!(%vg, %name, "resuming a volume that a killed LVM left suspended");
        let refreshed = group.lvm().refresh(vg, &name).await;
        if let Err(error) = group.store_outcome(refreshed) {
            let error = error_chain(&error);
            tracing::error!(%vg, %name, error, "cannot resume a volume; all who use it wait, see `dmsetup info`");
        }
    }
}
