//! Measures an installation as pods: the seconds until there is a volume, and the resident memory of the pods
//! afterwards.

use std::path::Path;
use std::thread::sleep;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use testbed::cluster::Cluster;
use testbed::node::Node;
use testbed::topolvm::{Topolvm, TopolvmSpec, manifests};

use crate::figure::Figure;
use crate::memory::AT_REST;
use crate::pod_memory::largest_pod;
use system_tests::manifests::{VolumeMode, claim, pod};
use system_tests::{fresh_cluster, plugin, product_images};

/// Prefixes of the names of its figures.
pub(crate) const FAMILIES: [&str; 1] = ["install."];

const GOAL_SECONDS: f64 = 30.0;
/// The StorageClass that ships with the manifests.
const CLASS: &str = "topolvm-provisioner";
/// Figures of the product's pods. Goals are the MiB of TopoLVM's pods in the same test cluster.
const PODS: [PodFigures; 3] = [
    PodFigures {
        component: "controller",
        resident: "install.pod.rss_mib.controller",
        anonymous: "install.pod.rss_mib.controller.anon",
        goal: 229.0,
    },
    PodFigures {
        component: "node",
        resident: "install.pod.rss_mib.node",
        anonymous: "install.pod.rss_mib.node.anon",
        goal: 80.5,
    },
    PodFigures {
        component: "lvmd",
        resident: "install.pod.rss_mib.lvmd",
        anonymous: "install.pod.rss_mib.lvmd.anon",
        goal: 29.5,
    },
];

/// The figures of a pod.
struct PodFigures {
    /// Label `app.kubernetes.io/component` of the pods.
    component: &'static str,
    /// Name of the figure of all resident memory.
    resident: &'static str,
    /// Name of the figure of the anonymous part.
    anonymous: &'static str,
    /// Goal of all resident memory, in MiB.
    goal: f64,
}

/// Measures an installation of the programs in this program's directory in a cluster of one node with kubectl alone,
/// and in another with the plugin.
pub(crate) fn run(directory: &Path) -> Result<Vec<Figure>> {
    let spec = product_images::in_pods(TopolvmSpec::nodes(1)?, "overlays/lvmd")?;
    let mut figures = in_fresh_cluster(&directory.join("c"), &spec, |cluster, node| {
        let seconds = time_until_bound(cluster, || apply(cluster, &spec.manifests))?;
        let mut figures = vec![seconds_figure("install.ready_s", seconds)];
        figures.extend(measure_memory(cluster, node)?);
        Ok(figures)
    })?;
    figures.push(in_fresh_cluster(&directory.join("p"), &spec, |cluster, _| {
        time_until_bound(cluster, || install(cluster)).map(|seconds| seconds_figure("install.plugin.ready_s", seconds))
    })?);
    Ok(figures)
}

fn in_fresh_cluster<T>(
    directory: &Path,
    spec: &TopolvmSpec,
    measure: impl FnOnce(&Cluster, &Node) -> Result<T>,
) -> Result<T> {
    let Topolvm { cluster, nodes } = fresh_cluster::up(directory, spec)?;
    let measured = nodes.first().context("the cluster has no node").and_then(|node| measure(&cluster, node));
    cluster.down(None)?;
    measured
}

fn seconds_figure(name: &'static str, seconds: f64) -> Figure {
    Figure { name, value: seconds, unit: "s", goal: GOAL_SECONDS }
}

fn apply(cluster: &Cluster, overlay: &Path) -> Result<()> {
    cluster.kubectl_ok([Path::new("apply"), Path::new("--server-side"), Path::new("-k"), overlay])?;
    let class = manifests().join("base/storageclass.yaml");
    cluster.kubectl_ok([Path::new("apply"), Path::new("-f"), &class]).map(drop)
}

/// Installs with the plugin, and returns when the pods that it installed are ready.
fn install(cluster: &Cluster) -> Result<()> {
    let answer = plugin::run(cluster, &cluster.inner_kubeconfig(), &["install", "--no-smoke-test"])?;
    ensure!(answer.is_success, "kubectl topolvm install: {answer:?}");
    Ok(())
}

/// Returns the seconds from the beginning of an installation until a claim that is created after it is Bound.
fn time_until_bound(cluster: &Cluster, install: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    install()?;
    cluster.apply(&claim("first", CLASS, "1Gi", VolumeMode::Filesystem).to_string())?;
    cluster.apply(&pod("first", "first", VolumeMode::Filesystem).to_string())?;
    let bound = "--for=jsonpath={.status.phase}=Bound";
    cluster.kubectl_ok(["wait", bound, "persistentvolumeclaim/first", "--timeout=180s"])?;
    Ok(start.elapsed().as_secs_f64())
}

/// Measures the resident memory of the pods when all are ready and idle.
fn measure_memory(cluster: &Cluster, node: &Node) -> Result<Vec<Figure>> {
    cluster.kubectl_ok(["wait", "--for=condition=Ready", "pods", "--all", "-A", "--timeout=180s"])?;
    sleep(AT_REST);
    let mut figures = Vec::new();
    for pod in &PODS {
        let resident = largest_pod(cluster, node, pod.component)?;
        let figure = |name, value, goal| Figure { name, value, unit: "MiB", goal };
        figures.push(figure(pod.resident, resident.mebibytes(), pod.goal));
        figures.push(figure(pod.anonymous, resident.anonymous_mebibytes(), f64::INFINITY));
    }
    Ok(figures)
}
