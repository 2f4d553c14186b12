//! Measures the I/O of volumes: the throughput of a volume relative to the bare device, the time until a limit is
//! enforced, and the CPU time of the agent while 20 limited volumes are mounted.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use testbed::node::{Node, NodeSpec};
use testbed::size::GIB;
use testbed::topolvm::{self, NODE, THIN_CLASS, THIN_VG, Topolvm, TopolvmSpec};
use topolvm_api::ApiFlavor;

use crate::figure::{Figure, SHARE, Selector, median};
use system_tests::manifests::{VolumeMode, claim, pod, storage_class};

/// Prefixes of the names of its figures.
pub(crate) const FAMILIES: [&str; 3] = ["io.", "throttle.", "node.cpu_s_per_min"];
const VG: &str = "myvg1";
/// The disk in addition to those of the volume groups.
const RAW: &str = "/dev/ubde";
const WRITE_BYTES: &str = "topolvm.io/write-bytes-per-second";
/// Rounds of volume and bare device in turn, and changes of a limit, of which the median counts.
const ROUNDS: usize = 5;
/// Operations of a round, of 4 KiB each, past the page cache.
const OPERATIONS: usize = 8192;
const MOUNTED: usize = 20;
const MINUTE: Duration = Duration::from_mins(1);

/// Starts a cluster with one node in `directory`, and measures the selected figures.
pub(crate) fn run(directory: &Path, wanted: &Selector<'_>) -> Result<Vec<Figure>> {
    let node = NodeSpec { spare_disks: vec![GIB], ..NodeSpec::number(1) };
    let spec = TopolvmSpec { nodes: vec![node], ..TopolvmSpec::nodes(1)? }.with_thin_class();
    let topolvm = topolvm::up_with(&directory.join("c"), &spec)?;
    let figures = measure(&topolvm, wanted);
    topolvm.cluster.down(None)?;
    figures
}

fn measure(topolvm: &Topolvm, wanted: &Selector<'_>) -> Result<Vec<Figure>> {
    let node = topolvm.nodes.first().context("the cluster has no node")?;
    let mut figures = Vec::new();
    for (name, group, class) in [("io.thick_vs_raw", VG, ""), ("io.thin_vs_raw", THIN_VG, THIN_CLASS)] {
        if wanted(name) {
            let value = compare_with_raw(topolvm, node, group, class)?;
            figures.push(Figure { name, value, unit: SHARE, goal: 0.98 });
        }
    }
    let limits = wanted("throttle.apply_ms");
    let rest = wanted("node.cpu_s_per_min");
    if limits || rest {
        start_pods(topolvm)?;
    }
    if limits {
        let value = change_limits(topolvm, node)?;
        figures.push(Figure { name: "throttle.apply_ms", value, unit: "ms", goal: 5000.0 });
    }
    if rest {
        let value = cpu_seconds_at_rest(node)?;
        figures.push(Figure { name: "node.cpu_s_per_min", value, unit: "s", goal: 0.1 });
    }
    Ok(figures)
}

/// Creates a volume in a device class, and returns its operations per second divided by those of the bare device:
/// writes and then reads of 4 KiB, one after the other, on blocks that were written before.
fn compare_with_raw(topolvm: &Topolvm, node: &Node, group: &str, class: &str) -> Result<f64> {
    let name = format!("bench-{group}");
    topolvm.cluster.apply(
        &json!({
            "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume", "metadata": {"name": name},
            "spec": {"name": name, "nodeName": node.name(), "size": "512Mi", "deviceClass": class},
        })
        .to_string(),
    )?;
    let object = format!("logicalvolumes.topolvm.io/{name}");
    topolvm.cluster.kubectl_ok(["wait", "--for=condition=Ready", &object, "--timeout=180s"])?;
    let id = topolvm.cluster.kubectl_ok(["get", &object, "-o", "jsonpath={.status.volumeID}"])?;
    let volume = format!("/dev/{group}/{id}");
    for device in [volume.as_str(), RAW] {
        node.script(&format!("dd if=/dev/zero of={device} bs=1M count={} oflag=direct status=none", OPERATIONS / 256))?;
    }
    let shares =
        (0..ROUNDS).map(|_| Ok(seconds(node, RAW)? / seconds(node, &volume)?)).collect::<Result<Vec<f64>>>()?;
    median(shares).context("no round")
}

/// Writes and reads a device past the page cache, and returns the seconds that it takes.
fn seconds(node: &Node, device: &str) -> Result<f64> {
    let script = format!(
        "uptime() {{ read -r now _ </proc/uptime; echo $now; }}\n\
         from=$(uptime)\n\
         dd if=/dev/zero of={device} bs=4k count={OPERATIONS} oflag=direct conv=notrunc status=none\n\
         dd if={device} of=/dev/null bs=4k count={OPERATIONS} iflag=direct status=none\n\
         awk -v from=$from -v to=$(uptime) 'BEGIN {{ print to - from }}'"
    );
    node.script(&script)?.trim().parse().context("no seconds")
}

/// Starts pods with a volume each, whose I/O is limited.
fn start_pods(topolvm: &Topolvm) -> Result<()> {
    let mut objects = vec![storage_class(ApiFlavor::TopoLvm, "bench", None, false)];
    for number in 0..MOUNTED {
        let name = format!("limited-{number}");
        let mut pod = pod(&name, &name, VolumeMode::Filesystem);
        if let Some(metadata) = pod.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.insert("annotations".to_owned(), json!({WRITE_BYTES: "10Mi"}));
        }
        objects.extend([claim(&name, "bench", "64Mi", VolumeMode::Filesystem), pod]);
    }
    topolvm.cluster.apply(&json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string())?;
    topolvm.cluster.kubectl_ok(["wait", "--for=condition=Ready", "pods", "--all", "--timeout=300s"]).map(drop)
}

/// Changes the limit of a pod, and returns the milliseconds from kubectl's start until the kernel shows it.
fn change_limits(topolvm: &Topolvm, node: &Node) -> Result<f64> {
    let uid = topolvm.cluster.kubectl_ok(["get", "pod", "limited-0", "-o", "jsonpath={.metadata.uid}"])?;
    let file = node.script(&format!("find /sys/fs/cgroup -type d -name 'pod{uid}'"))?.trim().to_owned() + "/io.max";
    let change = |round: usize| {
        let (limit, begun) = ((round + 1) << 20, Instant::now());
        let annotation = format!("{WRITE_BYTES}={limit}");
        topolvm.cluster.kubectl_ok(["annotate", "--overwrite", "pod", "limited-0", &annotation])?;
        topolvm.cluster.ready("apiserver", || {
            let shown = node.script(&format!("cat {file}"))?;
            ensure!(shown.contains(&format!(" wbps={limit} ")), "{shown}");
            Ok(())
        })?;
        Ok(begun.elapsed().as_secs_f64() * 1000.0)
    };
    median((0..ROUNDS).map(change).collect::<Result<Vec<f64>>>()?).context("no change")
}

/// Returns the seconds of CPU time that the agent takes in a minute in which nothing happens.
fn cpu_seconds_at_rest(node: &Node) -> Result<f64> {
    let ticks = || {
        let shown = node.script(&format!("awk '{{print $14 + $15}}' /proc/$(pidof -s {NODE})/stat"))?;
        shown.trim().parse::<f64>().context("no ticks")
    };
    // The pods have just started
    sleep(crate::memory::AT_REST);
    let before = ticks()?;
    sleep(MINUTE);
    let rate: f64 = node.script("getconf CLK_TCK")?.trim().parse()?;
    Ok((ticks()? - before) / rate)
}
