//! Checks of leaders that change too often, and of clocks.

use jiff::SignedDuration;
use k8s_openapi::api::coordination::v1::Lease;
use kube_core::ResourceExt as _;

use crate::facts::Facts;
use crate::finding::Finding;
use crate::objects::full_name;
use crate::read_error::{ReadError, read};

/// Clock skew that is allowed.
const SKEW: SignedDuration = SignedDuration::from_secs(30);
/// Age from which the number of leaders is meaningful.
const YOUNG: SignedDuration = SignedDuration::from_hours(1);
/// Changes of the leader in an hour, on average, that rolling updates explain.
const CHANGES_PER_HOUR: i64 = 6;

pub(super) fn stability(facts: &Facts) -> Result<Vec<Finding>, ReadError> {
    let leases = read(&facts.leases)?.iter().chain(read(&facts.provisioner_leases)?);
    let mut findings = Vec::new();
    for lease in leases.filter(|lease| lease.namespace().as_ref() == Some(&facts.namespace)) {
        findings.extend(find_skew(facts, lease));
        findings.extend(find_flaps(facts, lease));
    }
    Ok(Finding::ok_if_none(findings, "the leader is stable, and clocks are in sync"))
}

fn find_skew(facts: &Facts, lease: &Lease) -> Option<Finding> {
    let spec = lease.spec.as_ref()?;
    let ahead = spec.renew_time.as_ref()?.0.duration_since(facts.now);
    (ahead > SKEW).then(|| {
        let holder = spec.holder_identity.as_deref().unwrap_or_default();
        let found = format!("{holder} has renewed the Lease {} {} s in the future", full_name(lease), ahead.as_secs());
        Finding::warn(found, "synchronize the clocks of that machine and of this one (chronyc tracking, timedatectl)")
    })
}

fn find_flaps(facts: &Facts, lease: &Lease) -> Option<Finding> {
    let spec = lease.spec.as_ref()?;
    let age = facts.now.duration_since(lease.metadata.creation_timestamp.as_ref()?.0);
    let changes = i64::from(spec.lease_transitions.unwrap_or_default());
    let is_recent = spec.acquire_time.as_ref().is_some_and(|time| facts.now.duration_since(time.0) < YOUNG);
    (age >= YOUNG && is_recent && changes > CHANGES_PER_HOUR * (age.as_hours() + 1)).then(|| {
        let found = format!("the Lease {} has had {changes} holders in {} h", full_name(lease), age.as_hours() + 1);
        let remedy = "check what the replicas log about the Lease, whether they are restarted or throttled, and \
            whether the API server is slow";
        Finding::warn(found, remedy)
    })
}
