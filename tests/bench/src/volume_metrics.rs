//! Measures the cost of the metrics of 500 volumes for the agent of a node: real LVs with mounted filesystems, under
//! realistic names.

use std::path::Path;
use std::thread::sleep;

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use testbed::cluster::Cluster;
use testbed::node::{Node, NodeSpec};
use testbed::size::GIB;
use testbed::topolvm::{self, NODE, Topolvm, TopolvmSpec, node_socket};
use topolvm_api::ApiFlavor;

use crate::figure::Figure;
use crate::memory::{AT_REST, ResidentMemory};

/// Prefix of the names of its figures.
pub(crate) const FAMILY: &str = "metrics.";
const VG: &str = "myvg1";
/// Size of the volume group: 500 volumes of 8 MiB.
const VG_BYTES: u64 = 5 * GIB;
const VOLUMES: usize = 500;
/// Volumes that are formatted by one script, which has a deadline.
const BATCH: usize = 50;
/// Number of scrapes to average over: the kernel reports CPU time in hundredths of a second.
const SCRAPES: u32 = 50;

/// Starts a cluster with one node in `directory`, and measures a scrape.
pub(crate) fn run(directory: &Path) -> Result<Vec<Figure>> {
    let node = NodeSpec { vg_disks: vec![VG_BYTES], ..NodeSpec::number(1) };
    let spec = TopolvmSpec { nodes: vec![node], embeds_controllers: false, ..TopolvmSpec::nodes(1)? };
    let topolvm = topolvm::up_with(&directory.join("c"), &spec)?;
    let figures = measure(&topolvm);
    topolvm.cluster.down(None)?;
    figures
}

fn measure(topolvm: &Topolvm) -> Result<Vec<Figure>> {
    let node = topolvm.nodes.first().context("the cluster has no node")?;
    create_volumes(&topolvm.cluster, node)?;
    for first in (0..VOLUMES).step_by(BATCH) {
        mount_volumes(node, first)?;
    }
    // The agent reads the names of the pods when it starts
    node.kill_kept(NODE)?;
    topolvm.cluster.ready("apiserver", || {
        let page = node.script("curl -sf http://127.0.0.1:8080/metrics")?;
        for name in ["topolvm_volume_io_now{", "topolvm_volume_filesystem_available_bytes{"] {
            let shown =
                page.lines().filter(|line| line.starts_with(name) && line.contains("pod=\"postgresql-")).count();
            ensure!(shown == VOLUMES, "{shown} of {VOLUMES} volumes have {name}");
        }
        Ok(())
    })?;
    let (milliseconds, bytes) = scrape(node)?;
    sleep(AT_REST);
    let memory = ResidentMemory::parse(&node.script(&format!("cat /proc/$(pidof -s {NODE})/status"))?)?;
    Ok(vec![
        Figure { name: "metrics.scrape_500.ms", value: milliseconds, unit: "ms", goal: 20.0 },
        Figure { name: "metrics.scrape_500.kib", value: bytes / 1024.0, unit: "KiB", goal: 1024.0 },
        Figure { name: "metrics.rss_mib.500", value: memory.mebibytes(), unit: "MiB", goal: 16.0 },
    ])
}

/// Creates the LogicalVolumes, whose LVs the agent creates.
fn create_volumes(cluster: &Cluster, node: &Node) -> Result<()> {
    let volumes = (0..VOLUMES).map(|number| {
        let name = format!("pvc-8a9c7a62-98f1-4b53-a7f2-{number:012x}");
        let claim = format!("team-{:02}/data-postgresql-{}", number / 10, number % 10);
        json!({
            "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume",
            "metadata": {"name": name, "annotations": {"topolvm.io/claim": claim}},
            "spec": {"name": name, "nodeName": node.name(), "size": "8Mi"},
        })
    });
    let list = json!({"apiVersion": "v1", "kind": "List", "items": volumes.collect::<Vec<_>>()});
    cluster.apply(&list.to_string())?;
    let made = "--for=jsonpath={.status.volumeID}";
    cluster.kubectl_ok(["wait", made, "logicalvolumes.topolvm.io", "--all", "--timeout=300s"]).map(drop)
}

/// Creates and mounts filesystems on some of the LVs, and records their pods as the agent does when kubelet publishes a
/// volume.
fn mount_volumes(node: &Node, first: usize) -> Result<()> {
    let socket = node_socket(ApiFlavor::TopoLvm);
    let directory = Path::new(&socket).with_file_name("published-pods");
    let script = format!(
        r#"set -e
        mkdir -p {records}
        number=0
        for lv in $(lvs --noheadings -o lv_name {VG} | sort | tail -n +{from} | head -n {BATCH}); do
            target=/run/kubelet/pods/$lv/volumes/kubernetes.io~csi/pvc-$lv/mount
            mkfs.ext4 -q -O ^has_journal /dev/{VG}/$lv
            mkdir -p $target
            mount /dev/{VG}/$lv $target
            pod=postgresql-$((number++ % 10))
            printf '{{"volume":"%s","target":"%s","pod":"%s","uid":"bench"}}' $lv $target $pod >{records}/$lv.bench.json
        done"#,
        records = directory.display(),
        from = first + 1,
    );
    node.script(&script).map(drop)
}

/// Scrapes the metrics repeatedly. Returns the milliseconds of CPU time of the agent for each page, and the bytes of a
/// page.
fn scrape(node: &Node) -> Result<(f64, f64)> {
    let script = format!(
        "ticks() {{ awk '{{print $14 + $15}}' /proc/$(pidof -s {NODE})/stat; }}
        page=http://127.0.0.1:8080/metrics
        before=$(ticks)
        for number in $(seq {SCRAPES}); do curl -sf $page >/run/page; done
        echo $((($(ticks) - before) * 1000 / $(getconf CLK_TCK))) $(stat -c %s /run/page)"
    );
    let output = node.script(&script)?;
    let (milliseconds, bytes) = output.trim().split_once(' ').with_context(|| format!("two numbers: {output}"))?;
    Ok((milliseconds.parse::<f64>()? / f64::from(SCRAPES), bytes.parse()?))
}
