//! Records why a disk cannot be emptied for now.

use lvm::Host;
use topolvm_runtime::error_chain;

use crate::engine::group::Group;
use crate::engine::state::Shared;
use crate::error::Error;

/// Stores and publishes why a disk cannot be emptied for now, and logs it when it is news.
pub(super) fn record_obstacle<R: Host>(shared: &Shared<R>, group: &Group, uuid: &str, disk: &str, error: &Error) {
    let error = error_chain(error);
    if group.evacuation.set_obstacle(uuid, &error) {
        let vg = &group.name;
        tracing::error!(%vg, disk, error, "cannot empty a disk for now; it is tried again");
        shared.publish();
    }
}
