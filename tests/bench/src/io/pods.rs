//! Pods with a volume each: the time until a limit of their I/O is enforced, and the CPU time of the agent at rest.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use system_tests::manifests::{VolumeMode, claim, pod, storage_class};
use testbed::node::Node;
use testbed::topolvm::{NODE, Topolvm};
use topolvm_api::ApiFlavor;

use crate::figure::median;
use crate::memory::AT_REST;

const WRITE_BYTES: &str = "topolvm.io/write-bytes-per-second";
/// Changes of a limit, of which the median counts.
const ROUNDS: usize = 5;
const MOUNTED: usize = 20;
/// Minutes of CPU time: the kubelet measures each volume every one to two.
const MINUTES: u32 = 2;

/// Starts pods with a volume each.
pub(super) fn start(topolvm: &Topolvm) -> Result<()> {
    let mut objects = vec![storage_class(ApiFlavor::TopoLvm, "bench", None, false)];
    for number in 0..MOUNTED {
        let name = format!("mounted-{number}");
        objects
            .extend([claim(&name, "bench", "64Mi", VolumeMode::Filesystem), pod(&name, &name, VolumeMode::Filesystem)]);
    }
    topolvm.cluster.apply(&json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string())?;
    topolvm.cluster.kubectl_ok(["wait", "--for=condition=Ready", "pods", "--all", "--timeout=300s"]).map(drop)
}

/// Limits the I/O of all pods, and waits until the kernel has the limits.
pub(super) fn limit_all(topolvm: &Topolvm, node: &Node) -> Result<()> {
    topolvm.cluster.kubectl_ok(["annotate", "pods", "--all", &format!("{WRITE_BYTES}=10Mi")])?;
    topolvm.cluster.ready("apiserver", || {
        let lines = node.script("find /sys/fs/cgroup -name io.max -exec cat {} +")?;
        let limited = lines.lines().filter(|line| line.contains(" wbps=10485760 ")).count();
        ensure!(limited == MOUNTED, "{limited} of {MOUNTED} pods are limited");
        Ok(())
    })
}

/// Changes the limit of a pod, and returns the milliseconds from kubectl's start until the kernel shows it.
pub(super) fn change_limits(topolvm: &Topolvm, node: &Node) -> Result<f64> {
    let pod = "mounted-0";
    let uid = topolvm.cluster.kubectl_ok(["get", "pod", pod, "-o", "jsonpath={.metadata.uid}"])?;
    let file = node.script(&format!("find /sys/fs/cgroup -type d -name 'pod{uid}'"))?.trim().to_owned() + "/io.max";
    let change = |round: usize| {
        let (limit, begun) = ((round + 1) << 20, Instant::now());
        let annotation = format!("{WRITE_BYTES}={limit}");
        topolvm.cluster.kubectl_ok(["annotate", "--overwrite", "pod", pod, &annotation])?;
        topolvm.cluster.ready("apiserver", || {
            let shown = node.script(&format!("cat {file}"))?;
            ensure!(shown.contains(&format!(" wbps={limit} ")), "{shown}");
            Ok(())
        })?;
        Ok(begun.elapsed().as_secs_f64() * 1000.0)
    };
    median((0..ROUNDS).map(change).collect::<Result<Vec<f64>>>()?).context("no change")
}

/// Returns the seconds of CPU time that the agent takes per minute while nothing happens.
pub(super) fn cpu_seconds_per_minute(node: &Node) -> Result<f64> {
    let ticks = || {
        let shown = node.script(&format!("awk '{{print $14 + $15}}' /proc/$(pidof -s {NODE})/stat"))?;
        shown.trim().parse::<f64>().context("no ticks")
    };
    // The pods have just started or changed
    sleep(AT_REST);
    let before = ticks()?;
    sleep(Duration::from_mins(MINUTES.into()));
    let rate: f64 = node.script("getconf CLK_TCK")?.trim().parse()?;
    Ok((ticks()? - before) / rate / f64::from(MINUTES))
}
