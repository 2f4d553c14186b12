//! Measures the start of topolvm-controller with the embedded controllers in a cluster with 5,000 nodes and 200,000
//! volumes: time and memory. API server and etcd are real, and nothing else runs.

use std::num::NonZeroUsize;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::CSIStorageCapacity;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use system_tests::fake_node::FakeNodes;
use testbed::cluster::{API_SERVER_PROCESS, Cluster, ETCD, SCHEDULER_PROCESS};
use testbed::sidecars;
use testbed::topolvm::{self, CONTROLLER, TopolvmSpec};
use tokio::runtime::{self, Runtime};
use topolvm_api::LogicalVolume;
use topolvm_testkit::lvm::FakeLvm;

use super::api_lists;
use super::etcd::Etcd;
use super::examples::{CLAIM, Examples, NODE};
use super::provisioners::Provisioners;
use super::{LVMD_CONFIG, scheduled_claim};
use crate::agent::pid;
use crate::api_client;
use crate::figure::Figure;
use crate::memory::{AT_REST, ResidentMemory, peak_mebibytes};
use crate::watching::{is_bound, time_until_all};

const NODES: usize = 5000;
const VOLUMES: usize = 200_000;
const GIB: u64 = 1 << 30;
/// Number of the node whose free space is published again.
const OUTDATED: usize = 0;
/// Claim that is provisioned after the start.
const PENDING: &str = "pending";
/// Addresses of the controller.
const METRICS: &str = "127.0.0.1:8080";
const HEALTH: &str = "127.0.0.1:8081";
/// Time for a program to exit after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);
/// Time for all that is waited for: API server, controller.
const LIMIT: Duration = Duration::from_mins(10);
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Starts a control plane with the objects, and measures the controller.
pub(super) fn run(directory: &Path, divisor: NonZeroUsize) -> Result<Vec<Figure>> {
    std::fs::create_dir_all(directory)?;
    let mut spec = Provisioners::Embedded.spec(directory)?;
    spec.controller_arguments.push(format!("--health-probe-bind-address={HEALTH}"));
    spec.controller_arguments.push(format!("--metrics-bind-address={METRICS}"));
    let topolvm = topolvm::up_with(&directory.join("c"), &spec)?;
    let numbers = Numbers { nodes: (NODES / divisor).max(1), volumes: (VOLUMES / divisor).max(1) };
    let figures = fill(&topolvm.cluster, &spec, numbers).and_then(|()| measure(&topolvm.cluster, &spec));
    topolvm.cluster.down(None)?;
    figures
}

/// Numbers of objects.
#[derive(Clone, Copy)]
struct Numbers {
    nodes: usize,
    volumes: usize,
}

/// Has one volume made by all programs, stops them, and copies the objects in etcd.
fn fill(cluster: &Cluster, spec: &TopolvmSpec, numbers: Numbers) -> Result<()> {
    sidecars::apply_snapshot_crds(cluster)?;
    let nodes = FakeNodes::new(cluster, spec)?;
    nodes.add(NODE, &FakeLvm::new().with_group("ssd", 1024 * GIB), LVMD_CONFIG)?;
    let examples = nodes.block_on(async {
        let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(nodes.client());
        let create = async {
            let claim = serde_json::from_value(scheduled_claim(CLAIM, NODE))?;
            claims.create(&PostParams::default(), &claim).await.context("create a claim").map(drop)
        };
        time_until_all(&claims, &[CLAIM.to_owned()], is_bound, create).await?;
        Examples::read(&nodes.client()).await
    })?;
    cluster.stop(CONTROLLER, GRACE)?;
    nodes.stop_agent(NODE)?;
    nodes.stop()?;
    for name in ["controller-manager", SCHEDULER_PROCESS] {
        cluster.stop(name, GRACE)?;
    }
    cluster.stop(API_SERVER_PROCESS, GRACE)?;
    let start = Instant::now();
    cluster.netns().enter(|| block_on(write(&examples, numbers)))??;
    eprintln!("bench: {} nodes and {} volumes written in {:?}", numbers.nodes, numbers.volumes, start.elapsed());
    cluster.start_api_server()
}

async fn write(examples: &Examples, numbers: Numbers) -> Result<()> {
    let mut etcd = Etcd::connect(ETCD).await?;
    for number in 0..numbers.nodes {
        for (key, value) in examples.node(number) {
            etcd.put(key, value).await?;
        }
    }
    for number in 0..numbers.volumes {
        for (key, value) in examples.volume(number, number % numbers.nodes) {
            etcd.put(key, value).await?;
        }
    }
    etcd.flush().await
}

/// Starts the controller, and waits until it has done what is outstanding for each of its controllers.
fn measure(cluster: &Cluster, spec: &TopolvmSpec) -> Result<Vec<Figure>> {
    let (runtime, client) = (runtime()?, cluster.client());
    let client = runtime.block_on(client)?;
    runtime.block_on(leave_work(&client))?;
    let lists = cluster.netns().enter(|| {
        block_on(async { api_lists::time_lists(&api_client::connect(&cluster.inner_kubeconfig()).await?).await })
    })??;
    let start = Instant::now();
    topolvm::start_controller(cluster, spec)?;
    wait_until(start, || Ok(is_ready(cluster) && topolvm::is_leading(cluster, METRICS).unwrap_or_default()))?;
    let leading = start.elapsed();
    wait_until(start, || runtime.block_on(is_work_done(&client)))?;
    let done = start.elapsed();
    // It begins half a minute after the start
    wait_until(start, || has_checked(cluster))?;
    let controller = pid(cluster, CONTROLLER)?;
    let peak = peak_mebibytes(controller)?;
    sleep(AT_REST);
    let rest = ResidentMemory::read(controller)?.mebibytes();
    let figure = |name, value, unit, goal| Figure { name, value, unit, goal };
    Ok(vec![
        figure("scale.start_s", done.as_secs_f64(), "s", 30.0),
        figure("scale.start_s.api", lists.as_secs_f64(), "s", f64::INFINITY),
        figure("scale.start_s.leading", leading.as_secs_f64(), "s", f64::INFINITY),
        figure("scale.start.rss_mib", peak, "MiB", 600.0),
        figure("scale.start.rss_mib.rest", rest, "MiB", f64::INFINITY),
    ])
}

/// Creates a claim, requests more of another, and makes the published free space of a node wrong.
async fn leave_work(client: &Client) -> Result<()> {
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(client.clone());
    let mut claim = scheduled_claim(PENDING, &Examples::node_name(0));
    if let Some(annotations) = claim.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
        // As kube-controller-manager does
        annotations.insert("volume.kubernetes.io/storage-provisioner".to_owned(), "topolvm.io".into());
    }
    claims.create(&PostParams::default(), &serde_json::from_value(claim)?).await.context("create a claim")?;
    let request = Patch::Merge(json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}}));
    let name = Examples::claim_name(0);
    claims.patch(&name, &PatchParams::default(), &request).await.context("expand a claim")?;
    let capacity = Patch::Merge(json!({"capacity": "1Mi"}));
    let name = Examples::capacity_name(OUTDATED);
    capacities(client).patch(&name, &PatchParams::default(), &capacity).await.context("change the capacity")?;
    Ok(())
}

/// Returns true if the provisioner has created a LogicalVolume, the resizer has begun to expand a volume, and the
/// capacity of the node is published again.
async fn is_work_done(client: &Client) -> Result<bool> {
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(client.clone());
    let claim = claims.get(PENDING).await.context("read a claim")?;
    let volumes: Api<LogicalVolume> = Api::all(client.clone());
    let volume = format!("pvc-{}", claim.metadata.uid.unwrap_or_default());
    let is_provisioned = volumes.get_opt(&volume).await.context("read a LogicalVolume")?.is_some();
    let expanding = claims.get(&Examples::claim_name(0)).await.context("read a claim")?;
    let is_expanding = expanding.status.is_some_and(|status| status.allocated_resources.is_some());
    let capacity = capacities(client).get(&Examples::capacity_name(OUTDATED)).await.context("read the capacity")?;
    Ok(is_provisioned && is_expanding && capacity.capacity.is_some_and(|bytes| bytes.0 != "1Mi"))
}

fn capacities(client: &Client) -> Api<CSIStorageCapacity> {
    Api::namespaced(client.clone(), sidecars::NAMESPACE)
}

fn is_ready(cluster: &Cluster) -> bool {
    get(cluster, &format!("http://{HEALTH}/readyz")).is_ok()
}

/// Returns true if the checks of the installation have run once.
fn has_checked(cluster: &Cluster) -> Result<bool> {
    let metrics = get(cluster, &format!("http://{METRICS}/metrics"))?;
    let mut counts = metrics.lines().filter(|line| line.starts_with("topolvm_reconcile_seconds_count{"));
    Ok(counts.any(|line| line.contains("controller=\"doctor\"")))
}

fn get(cluster: &Cluster, url: &str) -> Result<String> {
    let output = cluster.command("curl").args(["-sf", "--max-time", "5", url]).output().context("run curl")?;
    ensure!(output.status.success(), "{url}: {}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn wait_until(start: Instant, mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    while !condition()? {
        if start.elapsed() > LIMIT {
            bail!("the controller has not done its work in {LIMIT:?}");
        }
        sleep(POLL_INTERVAL);
    }
    Ok(())
}

fn runtime() -> Result<Runtime> {
    runtime::Builder::new_current_thread().enable_all().build().context("start a runtime")
}

fn block_on<T>(future: impl Future<Output = Result<T>>) -> Result<T> {
    runtime()?.block_on(future)
}
