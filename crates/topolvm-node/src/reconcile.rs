//! The reconciler of LogicalVolumes: creates, grows and removes the LVs that the objects of this node ask for,
//! through lvmd, limits the I/O of their pods, and writes the result to their status.
//!
//! Each step can be interrupted anywhere and repeated: an LV has the UID of its object as name, and lvmd answers a
//! repeated request for an LV like the first.

mod adopt;
mod clients;
mod comparison;
mod create;
mod creation;
mod delete;
mod device_uses;
mod differences;
mod error;
mod expand;
mod failed_removals;
mod handle_orphans;
mod listing;
mod lost;
mod object_writer;
mod owner_search;
mod predecessor;
mod reconciler;
mod run;
mod snapshot_group;
mod source;
mod watch;
mod write_cache;

pub use clients::Clients;
pub use device_uses::FindDeviceUses;
pub use differences::VolumeGauges;
pub use error::ReconcileError;
pub use handle_orphans::HandleOrphans;
pub use listing::Listing;
pub use reconciler::{HostAccess, Reconciler};
pub use run::Triggers;
