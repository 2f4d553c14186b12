//! The scenarios. A scenario describes what a user or the cluster does; what the programs under test make of it is
//! compared.

mod access;
mod attributes;
mod binding;
mod classes;
mod clones;
mod deletion;
mod device_expansions;
mod dynamic_contents;
mod expansion_faults;
mod faults;
mod filesystem_expansions;
mod filesystems;
mod group_snapshots;
mod modifications;
mod pre_provisioned_contents;
mod resizer_restarts;
mod restarts;
mod secrets;
mod sizes;
mod snapshots;
mod snapshotter_restarts;
mod static_expansions;
mod static_volumes;
mod topology;

use super::scenario::Scenario;

/// Returns the scenarios that run at the same time.
pub(super) fn parallel() -> Vec<Scenario> {
    [
        access::scenarios(),
        attributes::scenarios(),
        binding::scenarios(),
        classes::scenarios(),
        clones::scenarios(),
        deletion::scenarios(),
        faults::scenarios(),
        filesystems::scenarios(),
        secrets::scenarios(),
        sizes::scenarios(),
        snapshots::scenarios(),
        static_volumes::scenarios(),
        topology::scenarios(),
    ]
    .concat()
}

/// Returns the scenarios that stop or replace the provisioner, which run one after the other.
pub(super) fn alone() -> Vec<Scenario> {
    restarts::scenarios()
}

/// Returns the scenarios in which the other provisioner takes over, which run one after the other.
pub(super) fn hand_overs() -> Vec<Scenario> {
    restarts::hand_overs()
}

/// Returns the scenarios of resizers that run at the same time.
pub(super) fn expansions_parallel() -> Vec<Scenario> {
    [
        device_expansions::scenarios(),
        expansion_faults::scenarios(),
        filesystem_expansions::scenarios(),
        modifications::scenarios(),
        static_expansions::scenarios(),
    ]
    .concat()
}

/// Returns the scenarios that stop the resizer, which run one after the other.
pub(super) fn expansions_alone() -> Vec<Scenario> {
    resizer_restarts::scenarios()
}

/// Returns the scenarios in which the other resizer takes over, which run one after the other.
pub(super) fn resizer_hand_overs() -> Vec<Scenario> {
    resizer_restarts::hand_overs()
}

/// Returns the scenarios of snapshotters that run at the same time.
pub(super) fn snapshots_parallel() -> Vec<Scenario> {
    [dynamic_contents::scenarios(), pre_provisioned_contents::scenarios(), group_snapshots::scenarios()].concat()
}

/// Returns the scenarios that stop the snapshotter, which run one after the other.
pub(super) fn snapshots_alone() -> Vec<Scenario> {
    [snapshotter_restarts::scenarios(), group_snapshots::restarts()].concat()
}

/// Returns the scenarios in which the other snapshotter takes over, which run one after the other.
pub(super) fn snapshotter_hand_overs() -> Vec<Scenario> {
    [snapshotter_restarts::hand_overs(), group_snapshots::hand_overs()].concat()
}
