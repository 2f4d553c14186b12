//! Sweeps of a volume group for unfinished volumes that no task creates any more.

use lvm::{Host, LvName};
use lvmd_config::tags;
use topolvm_runtime::error_chain;

use super::state::LockedGroup;
use super::unfinished::remove_unfinished;

/// Number of sweeps that leave the unfinished volume of another lvmd alone: a snapshot is created by two LVM processes,
/// and each may take as long as there is between two sweeps.
const SWEEPS_FOR_OTHERS: u32 = 2;

/// The unfinished volumes that the sweeps of a group have left.
#[derive(Debug, Default)]
pub(super) struct UnfinishedSweep {
    left: Vec<UnfinishedVolume>,
}

/// An unfinished volume that a sweep found.
#[derive(Clone, Debug, PartialEq, Eq)]
struct UnfinishedVolume {
    name: LvName,
    uuid: String,
    /// True if this instance of lvmd began its creation.
    is_ours: bool,
    /// False if another machine began it.
    is_of_this_machine: bool,
    /// Number of sweeps in a row that found it.
    sweeps: u32,
}

impl UnfinishedSweep {
    /// Removes unfinished volumes: those that an earlier process of this instance left, and those of other instances of
    /// this machine that the sweeps before found as well. In a locked group none of them is being created here.
    pub(super) async fn sweep<R: Host>(&mut self, group: &mut LockedGroup<R>) {
        let mut found = find_unfinished(group);
        for volume in &mut found {
            let is_same = |other: &&UnfinishedVolume| other.uuid == volume.uuid;
            volume.sweeps = self.left.iter().find(is_same).map_or(1, |before| before.sweeps.saturating_add(1));
            if (volume.is_ours || (volume.is_of_this_machine && volume.sweeps > SWEEPS_FOR_OTHERS))
                && let Some(known) = group.cached()
                && let Some(found) = known.volume_of_uuid(&volume.uuid)
                && let Err(error) = remove_unfinished(group, &known, found).await
            {
                let error = error_chain(&error);
                tracing::error!(vg = %known.name, name = %volume.name, error, "cannot remove an unfinished volume");
            }
        }
        let left = find_unfinished(group);
        found.retain(|volume| left.iter().any(|left| left.uuid == volume.uuid));
        self.left = found;
    }
}

/// Returns the unfinished volumes of a group. Only lvmd writes the tag, so their names are such as lvmd gives.
fn find_unfinished<R: Host>(group: &LockedGroup<R>) -> Vec<UnfinishedVolume> {
    let Some(known) = group.cached() else { return Vec::new() };
    let instance = &group.shared().instance;
    let volumes = known.volumes.iter().filter(|volume| tags::is_unfinished(volume));
    let unfinished = volumes.filter_map(|volume| {
        Some(UnfinishedVolume {
            name: volume.name.parse().ok()?,
            uuid: volume.uuid.to_string(),
            is_ours: instance.is_creating(volume),
            is_of_this_machine: instance.is_of_this_machine(volume),
            sweeps: 0,
        })
    });
    unfinished.collect()
}
