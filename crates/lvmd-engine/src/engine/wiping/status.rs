//! The state of wiping, for metrics.

use lvm::{Host, VgName};

use super::pending::{class_name_of, pending_wipes};
use crate::engine::state::Shared;

/// Volumes of one class, or of none, that are being wiped: for metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WipeStatus {
    /// Their volume group.
    pub volume_group: VgName,
    /// Empty when no configured class has such volumes.
    pub device_class: String,
    /// Number of volumes that are not wiped yet.
    pub volumes: u64,
    /// Bytes that are not wiped yet.
    pub bytes: u64,
    /// Number of failures since the start of the process.
    pub failures: u64,
}

/// Returns what is being wiped, and failed in this process, by group and class. Classes that wipe are listed also when
/// nothing is being wiped.
pub(in crate::engine) fn wipe_status<R: Host>(shared: &Shared<R>) -> Vec<WipeStatus> {
    let classes = shared.classes();
    let mut all: Vec<WipeStatus> = Vec::new();
    let mut add = |vg: &VgName, class: String, volumes: u64, bytes: u64, failures: u64| {
        let is_same = |entry: &&mut WipeStatus| entry.volume_group == *vg && entry.device_class == class;
        match all.iter_mut().find(is_same) {
            Some(entry) => {
                entry.volumes += volumes;
                entry.bytes += bytes;
                entry.failures += failures;
            }
            None => {
                all.push(WipeStatus { volume_group: vg.clone(), device_class: class, volumes, bytes, failures });
            }
        }
    };
    for class in classes.iter().filter(|class| class.wipe.is_some() && class.thin_pool.is_none()) {
        add(&class.volume_group, class.name.clone(), 0, 0, 0);
    }
    for group in shared.groups().values() {
        for volume in pending_wipes(&shared.instance, group) {
            let left = volume.size.saturating_sub(group.wipe_progress.wiped(&volume.uuid));
            add(&group.name, class_name_of(&classes, group, &volume.name), 1, left, 0);
        }
        for (class, failures) in group.wipe_progress.failures() {
            add(&group.name, class, 0, 0, failures);
        }
    }
    all
}
