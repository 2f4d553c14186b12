//! Memory of an agent of LVs without an object, between two looks at them.

use std::collections::BTreeSet;

use tokio::time::Instant;

use super::kept_time::KeptTimes;
use super::observations::Observations;

/// The memory of an agent. It is empty at its start.
#[derive(Debug, Default)]
pub(crate) struct OrphanState {
    pub(crate) observations: Observations,
    /// Time for which LVs are in quarantine.
    pub(crate) kept_times: KeptTimes,
    /// Names of the LVs that were looked at last, and when; `None` before the first look.
    pub(crate) looked: Option<(BTreeSet<String>, Instant)>,
    /// Names of the LVs of which an Event has told.
    pub(crate) told: BTreeSet<String>,
    /// The time until which the API server is known to remember LogicalVolumes, in seconds since 1970.
    pub(crate) remembers_until: Option<i64>,
}
