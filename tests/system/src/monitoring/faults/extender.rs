//! The scheduling mode extender with a kube-scheduler that was never given the extender.

use anyhow::{Context as _, Result};

use super::super::injected::WITHOUT_DATA_FOR_CAPACITY;
use super::super::queries::queries_of_dashboard;
use super::setup::{Setup, USED, USED_CLASS};
use crate::plugin;
use crate::scheduling::restart_kube_scheduler;

pub(super) const ALERTS: [&str; 1] = ["TopolvmExtenderNotProven"];

/// Waits for the alert, which the start of the test cluster raises, and starts kube-scheduler with the configuration
/// that ships. Then a pod is scheduled, the dashboard has data in the panels of extender, webhooks and wiping, and no
/// alert fires.
pub(super) fn leave_extender_unused(setup: &Setup<'_>) -> Result<()> {
    setup.apply_classes()?;
    setup.wait_for_alerts(&ALERTS)?;
    let finding =
        ("no probe has confirmed that kube-scheduler calls the extender", "configure kube-scheduler with the extender");
    plugin::wait_for_findings(setup.cluster, "extender-called", &[finding])?;
    let address = setup.kubectl_there(&["get", "service", "topolvm-scheduler", "-o", "jsonpath={.spec.clusterIP}"])?;
    // kube-scheduler of the test cluster does not use the DNS of the cluster
    restart_kube_scheduler(setup.cluster, "scheduler-config-service.yaml", |config| {
        config.replace("topolvm-scheduler.topolvm-system.svc", &address)
    })?;
    setup.wait_for_end(&ALERTS)?;
    setup.start_pod(USED, USED_CLASS)?;
    setup.prometheus.wait_for_data(expressions_of_extender()?).context("the dashboard")?;
    // The cluster is healthy: no other fault has been injected yet
    setup.prometheus.wait_for_silence(&[]).context("a healthy cluster")
}

/// Returns the expressions of the panels that have no data in the cluster test.
fn expressions_of_extender() -> Result<Vec<String>> {
    let is_one = |panel: &str| WITHOUT_DATA_FOR_CAPACITY.iter().any(|(name, _)| *name == panel);
    let queries = queries_of_dashboard()?.into_iter().filter(|query| is_one(&query.panel));
    Ok(queries.map(|query| query.expression).collect())
}
