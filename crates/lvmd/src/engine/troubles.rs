//! What is wrong with the storage while lvmd and LVM work: told by the health service `storage`, in `systemctl status` and in the
//! log.

use lvm::{Host, VgName};
use tokio::sync::watch;

use super::Engine;
use super::group::Group;
use crate::device_class::DeviceClass;
use crate::error::Error;

impl<R: Host> Engine<R> {
    /// What is wrong, one sentence each.
    pub fn troubles(&self) -> watch::Receiver<Vec<String>> {
        self.inner.troubles.subscribe()
    }

    pub(super) fn publish_troubles(&self) {
        self.inner.troubles.send_if_modified(|known| {
            let troubles = self.find_troubles();
            let is_news = *known != troubles;
            *known = troubles;
            is_news
        });
    }

    fn find_troubles(&self) -> Vec<String> {
        let mut troubles = Vec::new();
        for group in self.groups().values() {
            let is_used = self.is_used(group);
            if let Some(known) = group.get().filter(|known| is_used && known.missing_pvs > 0) {
                troubles.push(missing_pvs(&group.name, known.missing_pvs).to_string());
            }
            if let Some(why) = group.staleness().filter(|_| is_used && group.is_slow()) {
                troubles.push(format!(
                    "LVM does not answer in time about volume group {}: {why}; look for a disk that hangs and for an lvm command that \
                     holds its lock",
                    group.name
                ));
            }
            for (name, why) in group.ledger.failing() {
                troubles.push(format!("{}/{name} cannot be wiped: {why}", group.name));
            }
            troubles.extend(self.classes().iter().filter_map(|class| leak(class, group)).map(|leak| leak.to_string()));
        }
        troubles
    }
}

fn leak(class: &DeviceClass, group: &Group) -> Option<Error> {
    let known = group.get().filter(|group| group.name == class.volume_group)?;
    let pool = class.leaking_pool(&known)?;
    Some(Error::LeakingPool { vg: known.name.clone(), pool: pool.name.clone() })
}

pub(super) fn missing_pvs(vg: &VgName, missing: u64) -> Error {
    Error::PhysicalVolumesMissing { vg: vg.clone(), missing }
}

/// Says so once when physical volumes have gone or come back.
pub(super) fn tell_missing(vg: &VgName, before: u64, now: u64) {
    if now > 0 && now != before {
        let error = missing_pvs(vg, now).to_string();
        tracing::error!(%vg, error, "the capacity of a volume group is 0");
    } else if now < before {
        tracing::info!(%vg, "all physical volumes of the volume group are there again");
    }
}
