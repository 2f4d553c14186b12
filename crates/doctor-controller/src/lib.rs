//! Repeats those checks of `kubectl topolvm doctor` that only need objects of the API server, and reports their
//! findings: in a metric, in a ConfigMap with the fields of a condition, and in Events about it.

mod args;
mod condition;
mod context;
mod facts;

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Client, Resource as _};
use tokio::time::Instant;
use topolvm_api::ApiFlavor;
use topolvm_doctor::{CheckResult, Finding, Outcome, Report, examine_only};
use topolvm_kube::{EventPublisher, ExtenderInformer, LogicalVolumes, ReconcileError, ReconcileMetrics};
use topolvm_runtime::error_chain;

pub use args::DoctorArgs;
pub use context::DoctorContext;

use condition::ConditionWriter;

/// The checks. Others need what only an administrator or a node can see.
const CHECKS: [&str; 12] = [
    "node-agents",
    "topology-labels",
    "storage-classes",
    "extender-called",
    "blocked-pods",
    "marker-pods",
    "capacity-tracking",
    "unscheduled-pods",
    "selected-nodes",
    "copies",
    "volumes",
    "kernels",
];
/// Time after the start until the first run, and until the next one while everything begins and a check finds
/// something, where the interval is longer.
const SETTLING: Duration = Duration::from_secs(30);
/// Time after the start in which nodes, agents and csi-provisioner begin.
const BEGINNING: Duration = Duration::from_mins(5);

/// The sources of what is checked, and how findings are reported.
#[expect(missing_debug_implementations, reason = "the client has none")]
#[derive(Clone)]
pub struct DoctorSources {
    /// The client of the API server.
    pub client: Client,
    /// The API group.
    pub flavor: ApiFlavor,
    /// The cache of LogicalVolumes.
    pub volumes: LogicalVolumes,
    /// The outcome of the extender probe; `None` where nothing has to be proven.
    pub extender: Option<ExtenderInformer>,
    /// The publisher of Events about findings.
    pub events: EventPublisher,
    /// The metric of reconciles.
    pub metrics: ReconcileMetrics,
    /// The wall clock.
    pub now: fn() -> Timestamp,
}

/// The controller of checks.
#[expect(missing_debug_implementations, reason = "the client in it has none")]
pub struct Doctor {
    sources: DoctorSources,
    context: DoctorContext,
}

impl Doctor {
    /// Makes the controller, which reports to the metric of `context`.
    #[must_use]
    pub fn new(sources: DoctorSources, context: DoctorContext) -> Self {
        Self { sources, context }
    }

    /// Checks after a while, and then every interval. Returns at once where the interval is zero.
    pub async fn run(self) {
        let interval = self.context.interval;
        // False only when the process ends
        if interval.is_zero() || !self.sources.volumes.wait_until_listed().await {
            return;
        }
        let context = &self.context;
        let _cleared = context.clear_when_dropped();
        let condition = ConditionWriter::new(&self.sources.client, context).await;
        let (began, mut pause) = (Instant::now(), interval.min(SETTLING));
        loop {
            tokio::time::sleep(pause).await;
            let mut is_well = false;
            let reconciling = self.reconcile(&condition, &mut is_well);
            if let Err(error) = self.sources.metrics.observe("doctor", reconciling).await {
                tracing::warn!(error = error_chain(&error), "cannot check the installation");
            }
            pause = if !is_well && began.elapsed() < BEGINNING { interval.min(SETTLING) } else { interval };
        }
    }

    /// Checks once. `is_well` becomes true if nothing is found.
    async fn reconcile(&self, condition: &ConditionWriter, is_well: &mut bool) -> Result<(), ReconcileError> {
        let report = examine_only(&facts::read(self).await?, &CHECKS);
        self.context.publish(&report, (self.sources.now)());
        let map = condition.write(&report, (self.sources.now)()).await?;
        self.report_failures(&report, &map).await;
        *is_well = report.result == Outcome::Ok;
        Ok(())
    }

    /// Publishes an Event about each check that has failed.
    async fn report_failures(&self, report: &Report, map: &ConfigMap) {
        let about = map.object_ref(&());
        for check in report.checks.iter().filter(|check| check.result == Outcome::Fail) {
            let note = describe(check);
            self.sources.events.publish_warning(&about, "CheckFailed", "Check", note).await;
        }
    }
}

/// Returns what a check has found first, and what is to be done about it.
fn describe(check: &CheckResult) -> String {
    let failed = |finding: &&Finding| finding.result == check.result;
    let mut findings = check.findings.iter().filter(failed);
    let first = findings.next();
    let found = first.map(|finding| finding.found.as_str()).unwrap_or_default();
    let remedy = first.and_then(|finding| finding.remedy.as_deref()).unwrap_or_default();
    let more = match findings.count() {
        0 => String::new(),
        count => format!(" (and {count} more)"),
    };
    format!("{}: {found}{more}; to do: {remedy} (kubectl topolvm doctor shows all)", check.name)
}

#[cfg(test)]
mod tests;
