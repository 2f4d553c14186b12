//! Memory of an agent about LVs without an object, between two checks of them.

use std::collections::BTreeSet;

use tokio::time::Instant;

use crate::kept_time::KeptTimes;
use crate::observations::Observations;

/// The memory of an agent. It is empty at its start.
#[derive(Debug, Default)]
pub(crate) struct OrphanState {
    pub(crate) observations: Observations,
    /// Time for which LVs are in quarantine.
    pub(crate) kept_times: KeptTimes,
    /// Names of the LVs that were checked last, and when; `None` before the first check.
    pub(crate) checked: Option<(BTreeSet<String>, Instant)>,
    /// Names of the LVs that an Event has reported.
    pub(crate) reported: BTreeSet<String>,
    /// The time until which the API server is known to remember LogicalVolumes, in seconds since 1970.
    pub(crate) remembers_until: Option<i64>,
}
