//! Measures the I/O of volumes: their throughput relative to a bare LV and to the bare device, the time until a limit
//! is enforced, and the CPU time of the agent while 20 volumes are mounted, without limits and with them.

mod pods;
mod throughput;

use std::path::Path;

use anyhow::{Context as _, Result};
use testbed::node::NodeSpec;
use testbed::size::GIB;
use testbed::topolvm::{self, THIN_CLASS, THIN_POOL, THIN_VG, Topolvm, TopolvmSpec};

use crate::figure::{Figure, OF_LV, OF_RAW, Selector};
use throughput::DeviceClass;

/// Prefixes of the names of its figures.
pub(crate) const FAMILIES: [&str; 3] = ["io.", "throttle.", "node.cpu_s_per_min"];
/// Device classes, with the names of their figures.
const CLASSES: [(DeviceClass, [&str; 2]); 2] = [
    (DeviceClass { name: "", group: "myvg1", pool: None }, ["io.thick_vs_lv", "io.thick_vs_raw"]),
    (DeviceClass { name: THIN_CLASS, group: THIN_VG, pool: Some(THIN_POOL) }, ["io.thin_vs_lv", "io.thin_vs_raw"]),
];

/// Starts a cluster with one node in `directory`, and measures the selected figures.
pub(crate) fn run(directory: &Path, wanted: &Selector<'_>) -> Result<Vec<Figure>> {
    // With kubelet's defaults, because its calls are most of what an agent does at rest
    let node = NodeSpec { spare_disks: vec![GIB], kubelet_config: String::new(), ..NodeSpec::number(1) };
    let spec = TopolvmSpec { nodes: vec![node], ..TopolvmSpec::nodes(1)? }.with_thin_class();
    let topolvm = topolvm::up_with(&directory.join("c"), &spec)?;
    let figures = measure(&topolvm, wanted);
    topolvm.cluster.down(None)?;
    figures
}

fn measure(topolvm: &Topolvm, wanted: &Selector<'_>) -> Result<Vec<Figure>> {
    let node = topolvm.nodes.first().context("the cluster has no node")?;
    let mut figures = Vec::new();
    for (class, [of_lv, of_raw]) in CLASSES {
        if wanted(of_lv) || wanted(of_raw) {
            let shares = throughput::compare(topolvm, node, class)?;
            figures.push(Figure { name: of_lv, value: shares.of_lv, unit: OF_LV, goal: 0.98 });
            figures.push(Figure { name: of_raw, value: shares.of_raw, unit: OF_RAW, goal: 0.98 });
        }
    }
    let (changes, rest, limited) =
        (wanted("throttle.apply_ms"), wanted("node.cpu_s_per_min"), wanted("node.cpu_s_per_min.limits"));
    if changes || rest || limited {
        pods::start(topolvm)?;
    }
    if rest {
        let value = pods::cpu_seconds_per_minute(node)?;
        figures.push(Figure { name: "node.cpu_s_per_min", value, unit: "s", goal: 0.1 });
    }
    if limited {
        pods::limit_all(topolvm, node)?;
        let value = pods::cpu_seconds_per_minute(node)?;
        figures.push(Figure { name: "node.cpu_s_per_min.limits", value, unit: "s", goal: 0.3 });
    }
    if changes {
        let value = pods::change_limits(topolvm, node)?;
        figures.push(Figure { name: "throttle.apply_ms", value, unit: "ms", goal: 5000.0 });
    }
    Ok(figures)
}
