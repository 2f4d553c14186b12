//! A healthy cluster in use, in which no alert fires.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use testbed::cluster::Cluster;
use testbed::node::Node;
use topolvm_api::ApiFlavor;

use super::queries::read_rules;
use super::server::Prometheus;
use crate::scenario::{Reporter, Scenario};

/// Counts the steps of the use.
struct Count(u64);

impl Reporter for Count {
    fn step(&mut self, _title: &str, _seconds: f64, _lines: &str) {
        self.0 += 1;
    }
}

/// Creates, expands and deletes volumes for a time, one after the other, with the rules as they ship in a Prometheus
/// whose files are in a directory. Fails if an alert has fired, or would have fired later: alerts that are pending at
/// the end must end when the cluster is idle.
pub fn check_silence(cluster: &Cluster, node: &Node, directory: &Path, duration: Duration) -> Result<String> {
    let prometheus = Prometheus::start(cluster, directory, &read_rules()?)?;
    let (start, mut steps) = (Instant::now(), Count(0));
    while start.elapsed() < duration {
        Scenario { cluster, node, flavor: ApiFlavor::TopoLvm }.run(&mut steps)?;
    }
    let seconds = duration.as_secs();
    let fired = prometheus.query(&format!("max_over_time(ALERTS{{alertstate=\"firing\"}}[{seconds}s:1s])"))?;
    let pending = prometheus.query(&format!("max_over_time(ALERTS{{alertstate=\"pending\"}}[{seconds}s:1s])"))?;
    let scrapes = prometheus.query(&format!("min(count_over_time(up[{seconds}s]))"))?;
    let settled = prometheus.ready(|| {
        let left = prometheus.pending()?;
        ensure!(left.is_empty(), "alerts are pending at the end: {left:?}");
        Ok(())
    });
    prometheus.stop()?;
    settled?;
    ensure!(fired.is_empty(), "alerts have fired: {fired:#?}");
    ensure!(scrapes.iter().any(|sample| sample.value > 0.0), "nothing was scraped");
    let pending: Vec<_> = pending.iter().filter_map(|sample| sample.labels.get("alertname")).collect();
    Ok(format!("no alert has fired in {seconds} s and {} steps; pending for a while were: {pending:?}", steps.0))
}
