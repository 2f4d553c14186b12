//! Metrics of disk groups, computed from the report of the last scan of the disks.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use lvm::VgName;
use lvmd_config::{DiskFinding, DiskReport, DiskState};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use tokio::sync::watch;

type Report = watch::Receiver<Arc<DiskReport>>;
/// Names and values of the labels of a series, and its value.
type Series = (Vec<(&'static str, String)>, u64);

/// The metrics of disk groups, computed at each scrape.
#[derive(Debug)]
pub struct DiskMetrics(Arc<OnceLock<Report>>);

impl DiskMetrics {
    /// Adds the metrics to the registry. They are empty until there is a report.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self(Arc::default());
        registry.register_collector(Box::new(Self(Arc::clone(&metrics.0))));
        metrics
    }

    /// Computes the metrics from these reports from now on.
    pub fn show(&self, report: Report) {
        // There is one in a process.
        drop(self.0.set(report));
    }
}

impl Collector for DiskMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(report) = self.0.get() else { return Ok(()) };
        let report = Arc::clone(&report.borrow());
        encode(&mut encoder, "disks", "Disks of a disk group, including missing disks", disks(&report))?;
        encode(&mut encoder, "missing_disks", "Missing disks of a disk group", missing_disks(&report))?;
        let help = "Blank disks that could be added to a disk group";
        encode(&mut encoder, "candidate_disks", help, candidates(&report))?;
        let help = "Disks that a disk group selects and lvmd does not add, by the first reason";
        encode(&mut encoder, "refused_disks", help, refused_disks(&report))
    }
}

fn encode(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    series: impl IntoIterator<Item = Series>,
) -> fmt::Result {
    let name = format!("topolvm_lvmd_disk_group_{name}");
    let mut metric = encoder.encode_descriptor(&name, help, None, MetricType::Gauge)?;
    for (labels, value) in series {
        let value = i64::try_from(value).unwrap_or(i64::MAX);
        ConstGauge::new(value).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

fn label(group: &VgName) -> (&'static str, String) {
    ("disk_group", group.to_string())
}

fn disks(report: &DiskReport) -> impl Iterator<Item = Series> {
    report.groups.iter().map(|group| (vec![label(&group.name)], group.disks))
}

fn missing_disks(report: &DiskReport) -> impl Iterator<Item = Series> {
    report.groups.iter().map(|group| (vec![label(&group.name)], group.missing))
}

fn candidates(report: &DiskReport) -> impl Iterator<Item = Series> {
    report.groups.iter().map(|group| {
        let of_group = |finding: &&DiskFinding| is_candidate_of(finding, &group.name);
        let count = report.disks.iter().filter(of_group).count();
        (vec![label(&group.name)], u64::try_from(count).unwrap_or(u64::MAX))
    })
}

fn is_candidate_of(finding: &DiskFinding, group: &VgName) -> bool {
    finding.state == DiskState::Candidate && finding.group.as_ref() == Some(group)
}

fn refused_disks(report: &DiskReport) -> impl Iterator<Item = Series> {
    let mut counts: BTreeMap<(String, &'static str), u64> = BTreeMap::new();
    for finding in &report.disks {
        if let DiskState::Refused(reasons) = &finding.state
            && let Some(reason) = reasons.first()
        {
            // That several groups select it is no group's own
            let group = finding.group.as_ref().map(ToString::to_string).unwrap_or_default();
            *counts.entry((group, reason.label())).or_default() += 1;
        }
    }
    counts
        .into_iter()
        .map(|((group, reason), count)| (vec![("disk_group", group), ("reason", reason.to_owned())], count))
}
