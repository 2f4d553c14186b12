//! Settings that the controller of checks alone has, its metric, and what it has found last.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use topolvm_doctor::{Checked, Mode, Outcome, Report};

/// Number of findings by check and severity.
type Findings = Family<[(&'static str, &'static str); 2], Gauge>;

/// Findings that are kept for the web page.
const KEPT: usize = 200;

/// The settings and location of this process. Clones share the metric and the last findings.
#[derive(Clone, Debug)]
pub struct DoctorContext {
    /// Namespace of the programs.
    pub namespace: String,
    /// Name of this pod.
    pub pod: String,
    /// The scheduling mode, or what the webhooks mean without it.
    pub mode: Mode,
    /// True if this process publishes free space.
    pub publishes_capacity: bool,
    /// True if this process provisions volumes.
    pub provisions_volumes: bool,
    /// Interval of the checks; zero turns them off.
    pub(super) interval: Duration,
    pub(super) findings: Findings,
    /// The findings of the last run, while this process leads.
    pub(super) checked: watch::Sender<Option<Arc<Checked>>>,
}

impl DoctorContext {
    /// Makes the context, whose metric is not in a registry yet.
    #[must_use]
    pub fn new(namespace: String, pod: String, mode: Mode, publishes_capacity: bool, interval: Duration) -> Self {
        let (findings, checked) = (Findings::default(), watch::Sender::default());
        let provisions_volumes = false;
        Self { namespace, pod, mode, publishes_capacity, provisions_volumes, interval, findings, checked }
    }

    /// Subscribes to the findings of the last run, which there are while this process leads.
    pub fn checked(&self) -> watch::Receiver<Option<Arc<Checked>>> {
        self.checked.subscribe()
    }

    /// Adds the metric to the registry.
    #[must_use]
    pub fn register(self, registry: &mut Registry) -> Self {
        let help = "Findings of the checks that the controller runs periodically, by check and severity";
        registry.register("topolvm_doctor_findings", help, self.findings.clone());
        self
    }

    /// Sets the metric to the result of a report, and keeps its findings.
    pub(super) fn publish(&self, report: &Report, now: Timestamp) {
        self.checked.send_replace(Some(Arc::new(Checked::of(report, now, KEPT))));
        for check in &report.checks {
            for severity in [Outcome::Unknown, Outcome::Warn, Outcome::Fail] {
                let count = check.findings.iter().filter(|finding| finding.result == severity).count();
                let labels = [("check", check.name), ("severity", severity.as_str())];
                self.findings.get_or_create(&labels).set(i64::try_from(count).unwrap_or(i64::MAX));
            }
        }
    }

    /// Returns what clears metric and findings when it is dropped: another replica leads then.
    pub(super) fn clear_when_dropped(&self) -> ClearFindings {
        ClearFindings(self.clone())
    }
}

/// Clears metric and findings when it is dropped.
#[must_use]
pub(super) struct ClearFindings(DoctorContext);

impl Drop for ClearFindings {
    fn drop(&mut self) {
        self.0.findings.clear();
        self.0.checked.send_replace(None);
    }
}
