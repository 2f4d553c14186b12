//! A cluster without agents and controllers.

use anyhow::Result;

use super::setup::Setup;
use crate::workloads::{keep_off_nodes, put_back_on_nodes};

pub(super) const ALERTS: [&str; 2] = ["TopolvmAgentsAbsent", "TopolvmControllersAbsent"];

/// Name of the DaemonSet of the agents.
const AGENTS: &str = "topolvm-node";

pub(super) fn take_programs_away(setup: &Setup<'_>) -> Result<()> {
    keep_off_nodes(setup.cluster, AGENTS)?;
    setup.kubectl_there(&["scale", "deployment", "topolvm-controller", "--replicas=0"])?;
    setup.wait_for_alerts_of_new_pods(&ALERTS)?;
    put_back_on_nodes(setup.cluster, AGENTS)?;
    setup.restore_product()?;
    setup.wait_for_end(&ALERTS)
}
