//! Problems of the storage while lvmd and LVM work: missing disks, a hanging LVM, volumes that cannot be wiped. The
//! health service `storage`, `systemctl status` and the log report them.

use std::collections::BTreeMap;
use std::sync::Arc;

use lvm::VgName;

use super::group::Group;
use super::preconditions::check_pool_zeroes;
use crate::device_class::DeviceClasses;
use crate::error::Error;

/// Returns all problems of these volume groups, one sentence each.
pub(super) fn find_problems(groups: &BTreeMap<VgName, Arc<Group>>, classes: &DeviceClasses) -> Vec<String> {
    let mut problems = Vec::new();
    for group in groups.values() {
        let (vg, cached) = (&group.name, group.cached());
        let is_used = classes.uses(vg);
        if let Some(known) = cached.as_ref().filter(|known| is_used && known.missing_pvs > 0) {
            let missing = known.missing_pvs;
            problems.push(Error::PhysicalVolumesMissing { vg: vg.clone(), missing }.to_string());
        }
        if let Some(why) = group.stale_reason().filter(|_| is_used && group.is_slow()) {
            problems.push(format!(
                "LVM does not answer in time about volume group {vg}: {why}; look for a disk that hangs and for an lvm \
                 command that holds its lock"
            ));
        }
        for (name, why) in group.wipe_progress.failing() {
            problems.push(format!("{vg}/{name} cannot be wiped: {why}"));
        }
        let Some(known) = cached else { continue };
        let of_group = classes.iter().filter(|class| class.volume_group == *vg);
        problems.extend(of_group.filter_map(|class| Some(check_pool_zeroes(class, &known).err()?.to_string())));
    }
    problems
}

/// Logs once that physical volumes went missing or came back.
pub(super) fn log_missing_pvs(vg: &VgName, before: u64, now: u64) {
    if now > 0 && now != before {
        let error = Error::PhysicalVolumesMissing { vg: vg.clone(), missing: now }.to_string();
        tracing::error!(%vg, error, "the capacity of a volume group is 0");
    } else if now < before {
        tracing::info!(%vg, "all physical volumes of the volume group are there again");
    }
}
