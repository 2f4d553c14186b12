//! LVs whose LogicalVolume does not exist: the known facts about each, the proof that it is unused, and the step that
//! follows from that.
//!
//! Absence proves little: an API server that was restored from a backup, or that lists nothing, lacks objects whose
//! data is needed. So an LV is only touched if every fact agrees, twice and long apart, and then it is only renamed.

mod args;
mod candidate;
mod decision;
mod events;
mod handler;
mod kept_time;
mod listing;
mod observations;
mod proof;
mod server;
mod state;

pub use args::{OrphanPolicy, OrphanSettings};
pub use handler::{NodeAccess, OrphanHandler};
pub use listing::LvsWithoutObject;
