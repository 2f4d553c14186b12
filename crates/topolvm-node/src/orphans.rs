//! LVs whose LogicalVolume does not exist: the known facts about each, the proof that it is unused, and the step that
//! follows from that.
//!
//! Absence proves little: an API server that was restored from a backup, or that lists nothing, lacks objects whose
//! data is needed. So an LV is only touched if every fact agrees, twice and long apart, and then it is only renamed.

mod args;
mod candidate;
mod decision;
mod kept_time;
mod observations;
mod proof;
mod server;
mod state;

pub use args::{OrphanPolicy, OrphanSettings};
pub(crate) use candidate::Candidate;
pub(crate) use decision::{Step, choose_step};
pub(crate) use kept_time::to_record;
pub(crate) use proof::{Blocker, ClusterFacts, Counts, find_blocker};
pub(crate) use server::{ObjectState, Server, remembers_until};
pub(crate) use state::OrphanState;
