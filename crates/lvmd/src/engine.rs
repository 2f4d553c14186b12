//! Creates, grows, snapshots, removes and lists logical volumes by device class, on top of LVM.
//!
//! Changes of one volume group run one after the other under its lock, and the free space is checked under the same
//! lock: what two callers are promised at the same time is there for both. Reads are answered from the cache of the
//! volume groups, see [`group`], and start no LVM process.

mod activate;
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
mod inventory;
mod locate;
mod lock;
mod metadata_headers;
mod pool_upkeep;
mod preconditions;
mod proof;
mod quarantine;
mod read;
mod refresh;
mod refusals;
mod remove;
mod replacement;
mod resize;
mod resize_batch;
mod snapshot;
mod start;
mod state;
mod storage_health;
mod thin_device;
mod thin_pools;
mod unconfigured_groups;
mod unfinished;
mod wipe_progress;
mod wiping;

pub use creation::CreateVolume;
pub(crate) use evacuation::EvacuationStatus;
pub(crate) use pool_upkeep::PoolStatus;
pub use quarantine::AdoptVolume;
pub use snapshot::CreateSnapshot;
pub use start::StartError;
pub use state::Engine;
pub(crate) use state::GroupStatus;
pub(crate) use wiping::WipeStatus;
