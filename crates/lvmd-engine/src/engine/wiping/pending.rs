//! The removed volumes of a volume group that are to be wiped.

use std::time::Duration;

use lvm::Wipe;
use lvmd_config::DeviceClasses;
use lvmd_config::tags::{self, InstanceId};

use crate::engine::group::Group;
use crate::engine::retry_queue::Queued;
use crate::engine::scope::class_that_owns;

/// Time for which a volume is left to another lvmd that is to wipe it.
pub(super) const TAKE_OVER: Duration = Duration::from_mins(20);

/// A volume to wipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PendingWipe {
    /// LVM's UUID of it: its name may change meanwhile.
    pub(super) uuid: String,
    pub(super) name: String,
    pub(super) how: Wipe,
    /// In bytes.
    pub(super) size: u64,
    /// True if this instance of lvmd is to wipe it.
    pub(super) is_ours: bool,
}

impl Queued for PendingWipe {
    fn uuid(&self) -> &str {
        &self.uuid
    }

    fn first_delay(&self) -> Duration {
        if self.is_ours { Duration::ZERO } else { TAKE_OVER }
    }
}

/// Returns the volumes of a group that are to be wiped.
pub(super) fn pending_wipes(instance: &InstanceId, group: &Group) -> Vec<PendingWipe> {
    let Some(known) = group.cached() else { return Vec::new() };
    let pending = known.volumes.iter().filter_map(|volume| {
        Some(PendingWipe {
            uuid: volume.uuid.to_string(),
            name: volume.name.to_string(),
            how: tags::wipe_method(volume)?,
            size: volume.size,
            is_ours: instance.is_wiping(volume),
        })
    });
    pending.collect()
}

/// Returns the name of the configured class whose volumes lie where this volume lies; empty for none.
pub(super) fn class_name_of(classes: &DeviceClasses, group: &Group, name: &str) -> String {
    let known = group.cached();
    let volume = known.as_ref().and_then(|known| known.volume(name));
    let class = volume.and_then(|volume| class_that_owns(classes, &group.name, volume));
    class.map_or_else(String::new, |class| class.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_of_another_lvmd_waits_for_twenty_minutes() {
        let volume =
            |is_ours| PendingWipe { uuid: String::new(), name: String::new(), how: Wipe::Zero, size: 1, is_ours };
        assert_eq!(volume(true).first_delay(), Duration::ZERO);
        assert_eq!(volume(false).first_delay(), Duration::from_mins(20));
    }
}
