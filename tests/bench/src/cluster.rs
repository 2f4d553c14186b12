//! Measures the product in a whole cluster, with stock kubelet and snapshot-controller and real LVM: times until
//! objects are ready, and LVM processes of each operation.

mod bursts;
mod copies;
mod pods;
mod processes;
mod setup;

use std::path::Path;

use anyhow::{Context as _, Result};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use testbed::node::NodeSpec;
use testbed::size::GIB;
use testbed::topolvm::{self, Topolvm, TopolvmSpec};
use tokio::runtime;

use self::setup::Setup;
use crate::figure::{Figure, Selector};

/// Size of the volume group: enough for the largest burst three times over.
const VG_BYTES: u64 = 12 * GIB;

/// Prefixes of the names of its figures.
pub(crate) const FAMILIES: [&str; 8] =
    ["csi.bound", "csi.volume", "csi.ready", "csi.expand", "csi.snapshot", "csi.restore", "csi.procs.", "csi.shell"];

/// Starts a cluster with one node and measures the selected figures.
pub(crate) fn run(directory: &Path, wanted: &Selector<'_>) -> Result<Vec<Figure>> {
    let node = NodeSpec { vg_disks: vec![VG_BYTES], ..NodeSpec::number(1) };
    let spec = TopolvmSpec { nodes: vec![node], ..TopolvmSpec::nodes(1)? }.with_thin_class().with_snapshots();
    let (here, spec) = pin_nodes(spec)?;
    run_on_cpus(here.as_ref(), || {
        let topolvm = topolvm::up_with(&directory.join("c"), &spec)?;
        let figures = measure(&topolvm, wanted);
        topolvm.cluster.down(None)?;
        figures
    })?
}

/// Pins the node to the last CPU and returns the CPUs for all other processes, if there are several: the LVM of the
/// shell loop and that of the product must have the same share.
fn pin_nodes(mut spec: TopolvmSpec) -> Result<(Option<CpuSet>, TopolvmSpec)> {
    let mut cpus = sched_getaffinity(None).context("ask which CPUs this process may use")?;
    let last = (0..CpuSet::MAX_CPU).rev().find(|cpu| cpus.is_set(*cpu)).context("this process may use no CPU")?;
    cpus.unset(last);
    for node in &mut spec.nodes {
        node.cpu = Some(last);
    }
    Ok(((cpus.count() > 0).then_some(cpus), spec))
}

/// Runs an action in this thread, and in those that it starts, on these CPUs only.
fn run_on_cpus<T>(cpus: Option<&CpuSet>, action: impl FnOnce() -> T) -> Result<T> {
    let Some(cpus) = cpus else { return Ok(action()) };
    let before = sched_getaffinity(None).context("ask which CPUs this process may use")?;
    sched_setaffinity(None, cpus).context("move to other CPUs")?;
    let done = action();
    sched_setaffinity(None, &before).context("move back to all CPUs")?;
    Ok(done)
}

fn measure(topolvm: &Topolvm, wanted: &Selector<'_>) -> Result<Vec<Figure>> {
    let cluster = &topolvm.cluster;
    let node = topolvm.nodes.first().context("the cluster has no node")?;
    // Inside the cluster's namespace, so that watch events arrive as early as the product's
    cluster.netns().enter(|| {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let setup = Setup::new(cluster, node).await?;
            let mut figures = Vec::new();
            if wanted("csi.bound") || wanted("csi.volume") || wanted("csi.shell") {
                figures.extend(bursts::measure(&setup).await?);
            }
            if wanted("csi.ready") || wanted("csi.expand") {
                figures.extend(pods::measure(&setup).await?);
            }
            if wanted("csi.snapshot") || wanted("csi.restore") {
                figures.extend(copies::measure(&setup).await?);
            }
            if wanted("csi.procs.") {
                figures.extend(processes::measure(&setup).await?);
            }
            Ok(figures)
        })
    })?
}
