//! A burst of pods with volumes on three nodes that are nearly full, with kube-scheduler and csi-provisioner, in both
//! modes.

use std::time::Duration;

use anyhow::{Result, ensure};
use system_tests::scheduling::{Mode, Settings, run_burst};

use crate::Body;
use crate::fixture::{Fixture, spec};

pub(crate) const ALL: &[(&str, Body)] =
    &[("a_burst_of_pods_fills_nodes_and_none_of_them_waits_although_there_is_room", fill_nodes)];

fn fill_nodes(fixture: &Fixture) -> Result<()> {
    for mode in [Mode::Capacity, Mode::Extender] {
        let settings = Settings { mode, seed: 1, pods: 15, claims: 1 };
        let spec = spec(&[])?;
        let run = || run_burst(&fixture.cluster, &spec, settings);
        let outcome = mode.run(&fixture.cluster, &spec, Duration::from_secs(1), run)?;
        eprintln!("{outcome}");
        ensure!(outcome.is_right(), "{outcome}");
    }
    fixture.check_rights()
}
