//! Chaos test: creates, expands, copies and deletes volumes in a real cluster while programs are killed, nodes
//! disturbed and the API server is unavailable. Afterwards Kubernetes, lvmd and LVM must have the same volumes: those
//! that the plan leaves behind.

mod abandoned;
mod agreement;
mod class;
mod controllers;
mod disagreement;
mod disturb;
mod disturbance;
mod expected;
mod fields;
mod foreign_group;
mod history;
mod lineage;
mod node_deleted;
mod objects;
mod outage;
mod plan;
mod programs;
mod remap;
mod report;
mod run;
#[cfg(test)]
mod sample;
mod state;
mod steps;
mod workload;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use testbed::cluster::Cluster;
use testbed::node::Node;
use testbed::topolvm::{THIN_CLASS, TopolvmSpec};
use topolvm_api::ApiFlavor;

use self::class::Class;

pub(crate) use self::controllers::Controllers;
use self::disturb::DisturbedNodes;
pub(crate) use self::disturbance::DisturbanceKind;
use self::history::History;
use self::plan::Plan;
use self::programs::Programs;
pub(crate) use self::report::Report;
use self::run::Run;
use self::steps::SNAPSHOT_CLASS;
use system_tests::manifests::{snapshot_class, storage_class};

/// Timeout for the start of a workload's pod.
const POD_START: Duration = Duration::from_mins(2);

/// Settings of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// Seed of the random numbers that determine the plan.
    pub(crate) seed: u64,
    /// Number of sequences of steps.
    pub(crate) sequences: usize,
    /// Number of sequences that run at the same time.
    pub(crate) workers: usize,
    /// Timeout of one step, and of the wait at the end until all states agree.
    pub(crate) patience: Duration,
    /// Restricts the run to this kind of disturbance, more often than usual, without kills and outages.
    pub(crate) only: Option<DisturbanceKind>,
    /// The programs that create, delete, expand and snapshot volumes.
    pub(crate) controllers: Controllers,
}

/// Returns the specification of the cluster for a run: so many nodes with a thin class, a second volume group and a
/// blank disk, and all sidecars. Of two successive seeds one has csi-provisioner with its default flags.
pub(crate) fn spec(nodes: u8, seed: u64) -> Result<TopolvmSpec> {
    let spec = remap::with_small_group(TopolvmSpec::nodes(nodes)?.with_sidecars().with_thin_class().with_snapshots())?;
    let spec = foreign_group::with_foreign_disk(spec);
    Ok(if seed.is_multiple_of(2) { spec } else { spec.with_upstream_provisioner() })
}

/// A cluster of [`spec`] without volumes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chaos<'a> {
    /// The cluster.
    pub(crate) cluster: &'a Cluster,
    /// Nodes of the cluster.
    pub(crate) nodes: &'a [Node],
    /// Specification of the cluster.
    pub(crate) spec: &'a TopolvmSpec,
}

impl Chaos<'_> {
    /// Runs the plan of a seed and deletes all volumes at the end. The error has the seed and the history of the
    /// volumes concerned.
    pub(crate) fn run(&self, settings: Settings) -> Result<Report> {
        let history = History::new(&self.cluster.log("chaos"))?;
        self.run_with(settings, &history).with_context(|| format!("seed {}", settings.seed))
    }

    fn run_with(&self, settings: Settings, history: &History) -> Result<Report> {
        self.apply_classes()?;
        let plan = Plan::new(settings.seed, settings.sequences, settings.only);
        let plan = if settings.controllers == Controllers::Changing { plan.with_changes() } else { plan };
        let programs = Programs::start(self.cluster, self.nodes, self.spec, settings.controllers, history)?;
        let stop = AtomicBool::new(false);
        let report = thread::scope(|scope| {
            let supervising = scope.spawn(|| programs.supervise(&stop));
            let report = DisturbedNodes::start(self.cluster, self.nodes, history, &programs, POD_START)
                .context("start the workloads")
                .and_then(|disturbed| {
                    let (plan, programs, disturbed) = (&plan, &programs, &disturbed);
                    let Self { cluster, nodes, spec } = *self;
                    Run { cluster, nodes, spec, settings, plan, history, programs, disturbed }.run()
                });
            stop.store(true, Ordering::Relaxed);
            supervising.join().map_err(|_| anyhow!("a thread panicked"))??;
            report
        })?;
        programs.end()?;
        Ok(report)
    }

    /// Applies a StorageClass for each [`Class`], with and without waiting for a pod, and a VolumeSnapshotClass.
    fn apply_classes(&self) -> Result<()> {
        for (class, device_class) in [(Class::Thick, None), (Class::Thin, Some(THIN_CLASS))] {
            for (name, immediate) in [(class.name(), true), (class.waiting_name(), false)] {
                self.cluster.apply(&storage_class(ApiFlavor::TopoLvm, name, device_class, immediate).to_string())?;
            }
        }
        self.cluster.apply(&snapshot_class(ApiFlavor::TopoLvm, SNAPSHOT_CLASS).to_string()).map(drop)
    }
}
