//! Creates, grows, snapshots, removes and lists logical volumes by device class, on top of LVM.
//!
//! Changes of one volume group run one after the other under its lock, and the free space is checked under the same
//! lock, so that two callers never get the same space. Only a `LockedGroup` gives the commands of LVM that change a
//! group. Reads are answered from the cache of the volume groups, see [`group`], and start no LVM process.

mod activation;
mod active_part;
mod change_lock;
mod change_queue;
mod create;
mod create_batch;
mod creation;
mod device_snapshot;
mod disk_volumes;
mod disks;
mod evacuation;
mod evacuation_progress;
mod external_changes;
mod group;
mod group_tags;
mod growth;
mod interrupted_moves;
mod metadata_headers;
mod pool_maintenance;
mod pool_steps;
mod preconditions;
mod proof;
mod quarantine;
mod refresh;
mod refusals;
mod remove;
mod replacement;
mod report;
mod report_entries;
mod resize;
mod resize_batch;
mod retry_queue;
mod scope;
mod search;
mod snapshot;
mod snapshot_group;
mod start;
mod state;
mod status;
mod storage_health;
mod suspended;
mod thin_device;
mod tracking;
mod unconfigured_groups;
mod unfinished;
mod unfinished_sweep;
mod unproven_classes;
mod volumes;
mod wipe_progress;
mod wiping;

use std::sync::Arc;

use state::Shared;

pub use creation::CreateVolume;
pub use disks::LockedDisks;
pub use evacuation::EvacuationStatus;
pub use pool_maintenance::PoolStatus;
pub use quarantine::AdoptVolume;
pub use snapshot::CreateSnapshot;
pub use start::StartError;
pub use status::GroupStatus;
pub use wiping::WipeStatus;

/// Device classes on top of LVM. Clones share everything.
#[derive(Debug)]
pub struct Engine<R> {
    shared: Arc<Shared<R>>,
}

impl<R> Clone for Engine<R> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}
