//! The controllers, the roles and the admission policy against a real API server and a real kube-controller-manager.
//! Nodes are objects without machines, so the tests take seconds. All tests share one control plane, one after the
//! other.
#![expect(clippy::print_stderr, clippy::indexing_slicing, reason = "tests, and progress for the user")]

mod access;
mod burst;
mod capacity;
mod chart;
mod claims;
mod credentials;
mod disk_operations;
mod doctor;
mod extender;
mod fixed;
mod fixture;
mod group_snapshots;
mod injected;
mod install;
mod kube_scheduler;
mod leader;
mod metrics;
mod mode_change;
mod node_storage;
mod nodes;
mod parity;
mod placement;
mod plugin;
mod postmortem;
mod provisioner;
mod rebuild;
mod resizer;
mod snapshotter;
mod stale;
mod web_page;

use std::process::ExitCode;

use fixture::Fixture;
use testbed::suite::{self, InSoak};

/// Tests that a soak runs.
const IN_SOAK: InSoak = InSoak {
    only: &[
        // Decoders of older kube-schedulers are built for this test only
        "older_kube_schedulers_read_the_configurations_that_ship",
        // `make soak ONLY=scheduling` does this with more pods
        "burst_without_reservations_exceeds_the_capacity_of_nodes",
        // Minutes, with a separate control plane
        "scheduling_mode_change_schedules_pods_at_each_step",
        // Three minutes, as each Lease has to expire; unit tests lose it at each step
        "embedded_provisioner_continues_after_a_lost_lease",
        // 190 scenarios, with control planes of their own
        "stock_provisioner_passes_all_parity_scenarios",
        "embedded_provisioner_equals_the_stock_one",
        "provisioners_take_over_the_volumes_of_each_other",
        // 97 scenarios, as above
        "stock_resizer_passes_all_parity_scenarios",
        "embedded_resizer_equals_the_stock_one",
        "resizers_take_over_the_expansions_of_each_other",
        // 78 scenarios, as above
        "stock_snapshotter_passes_all_parity_scenarios",
        "embedded_snapshotter_equals_the_stock_one",
        "snapshotters_take_over_the_contents_of_each_other",
    ],
    // With helm 3
    also: &["helm_upgrade_from_topolvms_chart_works_and_rolls_back"],
};

/// The function of a test, which runs with the control plane.
type Body = fn(&Fixture) -> anyhow::Result<()>;

fn main() -> ExitCode {
    let groups: &[&[(&str, Body)]] = &[
        nodes::ALL,
        claims::ALL,
        rebuild::ALL,
        stale::ALL,
        leader::ALL,
        credentials::ALL,
        access::ALL,
        node_storage::ALL,
        disk_operations::ALL,
        capacity::ALL,
        provisioner::ALL,
        resizer::ALL,
        snapshotter::ALL,
        group_snapshots::ALL,
        metrics::ALL,
        fixed::ALL,
        extender::ALL,
        burst::ALL,
        kube_scheduler::ALL,
        placement::ALL,
        doctor::ALL,
        plugin::ALL,
        install::ALL,
    ];
    let shared = groups.concat().into_iter().map(|(name, body)| suite::test(name, move || fixture::run_test(body)));
    let tests = shared
        .chain(chart::tests())
        .chain(postmortem::tests())
        .chain(mode_change::tests())
        .chain(web_page::tests())
        .chain(parity::tests());
    let code = suite::on_host(IN_SOAK.select(tests.collect()));
    if let Err(error) = fixture::down() {
        eprintln!("control plane: taking it down failed: {error:#}");
        return ExitCode::FAILURE;
    }
    code
}
