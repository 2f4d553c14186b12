//! Checks of an installation, each with its meaning and its fix.
//!
//! This crate is pure: [`Facts`] are what the caller has listed, a check is a function of them, and [`examine`] runs
//! all checks.

mod bound_claims;
mod check;
mod checked;
mod checks;
mod csi_persistent_volume;
mod facts;
mod finding;
mod manifests;
mod metrics;
mod mode;
mod mode_detection;
mod objects;
mod pruning;
mod read_error;
mod report;
mod scheduling_message;
mod server_version;
mod shell;
mod snapshots;
mod volume_problem;
mod webhooks;
mod workloads;

pub use bound_claims::BoundClaims;
pub use checked::Checked;
pub use csi_persistent_volume::CsiPersistentVolume;
pub use facts::Facts;
pub use finding::{Finding, Outcome};
pub use metrics::{Metrics, Sample};
pub use mode::{Mode, unproven_reason};
pub use pruning::{prune_capacity, prune_claim, prune_csi_node, prune_node};
pub use read_error::{ReadError, ReadResult};
pub use report::{CheckResult, Report, examine, examine_only};
pub use server_version::{OLDEST, Version, is_too_old};
pub use snapshots::{RESOURCES as SNAPSHOT_RESOURCES, Snapshot, SnapshotClass};
pub use volume_problem::{VolumeProblem, find_volume_problem, is_overdue};
pub use webhooks::{Backend, our_webhooks};
pub use workloads::{LEASE, Right, Role, Workload};

#[cfg(test)]
mod tests;
