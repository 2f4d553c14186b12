//! A burst of pods with volumes on three nodes that are nearly full, with kube-scheduler and csi-provisioner, in each
//! mode; and the same without reservations, which shows their effect.

use std::time::Duration;

use anyhow::{Result, ensure};
use system_tests::scheduling::{Mode, Outcome, Settings, run_burst};

use crate::Body;
use crate::fixture::{Fixture, spec};

pub(crate) const ALL: &[(&str, Body)] = &[
    ("burst_of_pods_fills_nodes_and_no_pod_is_overlooked", fill_nodes),
    ("burst_without_reservations_exceeds_the_capacity_of_nodes", fill_nodes_without_reservations),
];

fn fill_nodes(fixture: &Fixture) -> Result<()> {
    for mode in [Mode::Capacity, Mode::EmbeddedCapacity, Mode::Extender] {
        let outcome = run(fixture, mode)?;
        ensure!(outcome.is_right(), "{outcome}");
    }
    fixture.check_rights()
}

/// Runs the burst of the other test. Refused volumes here show that the other test can fail.
fn fill_nodes_without_reservations(fixture: &Fixture) -> Result<()> {
    let outcome = run(fixture, Mode::ExtenderWithoutReservations)?;
    ensure!(outcome.refused > 0, "no volume was refused: {outcome}");
    Ok(())
}

fn run(fixture: &Fixture, mode: Mode) -> Result<Outcome> {
    let settings = Settings { mode, seed: 1, pods: 15, claims: 2 };
    let spec = spec(&[])?;
    let burst = || run_burst(&fixture.cluster, &spec, settings);
    let outcome = mode.run(&fixture.cluster, &spec, Duration::from_secs(1), burst)?;
    eprintln!("{outcome}");
    Ok(outcome)
}
