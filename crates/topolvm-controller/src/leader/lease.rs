//! Reads a Lease, and builds the Leases to write. Pure.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use super::ElectionTiming;

/// Returns whether the Lease has no holder: it is new, or its last holder has released it.
pub(super) fn is_free(spec: &LeaseSpec) -> bool {
    spec.holder_identity.as_deref().unwrap_or_default().is_empty()
}

/// Returns whether the Lease has this holder.
pub(super) fn is_held_by(lease: &Lease, identity: &str) -> bool {
    lease.spec.as_ref().is_some_and(|spec| spec.holder_identity.as_deref() == Some(identity))
}

/// Returns for how long the Lease is valid after it was seen to change.
pub(super) fn duration(spec: &LeaseSpec, timing: &ElectionTiming) -> Duration {
    let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    seconds.map_or(timing.lease_duration, Duration::from_secs)
}

/// Returns the Lease with this process as its holder from now on.
pub(super) fn acquired(mut lease: Lease, identity: &str, timing: &ElectionTiming, now: Timestamp) -> Lease {
    let spec = lease.spec.get_or_insert_default();
    if spec.holder_identity.as_deref() != Some(identity) {
        let before = spec.lease_transitions.unwrap_or_default();
        // The first holder is no change of holders
        let changes = i32::from(spec.renew_time.is_some());
        spec.lease_transitions = Some(before.saturating_add(changes));
        spec.acquire_time = Some(MicroTime(now));
        spec.holder_identity = Some(identity.to_owned());
    }
    spec.lease_duration_seconds = Some(i32::try_from(timing.lease_duration.as_secs()).unwrap_or(i32::MAX));
    spec.renew_time = Some(MicroTime(now));
    lease
}

/// Returns the Lease with a new renew time.
pub(super) fn renewed(mut lease: Lease, now: Timestamp) -> Lease {
    lease.spec.get_or_insert_default().renew_time = Some(MicroTime(now));
    lease
}

/// Returns the Lease without a holder, as client-go writes it.
pub(super) fn released(mut lease: Lease, now: Timestamp) -> Lease {
    let spec = lease.spec.get_or_insert_default();
    // Older versions of it write an empty name
    spec.holder_identity = None;
    spec.lease_duration_seconds = Some(1);
    spec.renew_time = Some(MicroTime(now));
    spec.acquire_time = Some(MicroTime(now));
    lease
}
