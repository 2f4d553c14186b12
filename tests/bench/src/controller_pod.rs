//! Measures the memory of a controller pod with all of its containers, with the stock sidecars and with the embedded
//! controllers in turn, in a cluster with volumes of the driver and with many claims of other drivers.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use system_tests::kustomization::{Kustomization, patch};
use system_tests::manifests::virtual_node;
use system_tests::{fresh_cluster, product_images, restarts};
use testbed::cluster::Cluster;
use testbed::node::{Node, NodeSpec};
use testbed::size::GIB;
use testbed::topolvm::{Topolvm, TopolvmSpec, roll_out};
use tokio::runtime;
use topolvm_api::LogicalVolume;

use crate::figure::Figure;
use crate::memory::AT_REST;
use crate::pod_memory::largest_pod;

/// Prefix of the names of its figures.
pub(crate) const FAMILY: &str = "controller.pod.";

/// Volumes of the driver.
const VOLUMES: usize = 1000;
/// Bound claims of another driver.
const FOREIGN: usize = 20_000;
/// Concurrent requests that create objects.
const CONCURRENT_REQUESTS: usize = 32;
/// Time for kube-controller-manager to bind all claims.
const LIMIT: Duration = Duration::from_mins(15);

/// Programs that provision and expand volumes and take snapshots.
#[derive(Clone, Copy, Debug)]
enum Mode {
    Stock,
    Embedded,
}

/// Starts a cluster with one node in `directory`, and measures the pod.
pub(crate) fn run(directory: &Path) -> Result<Vec<Figure>> {
    // The stock sidecars need it
    let node = NodeSpec { memory: 4 * GIB, ..NodeSpec::number(1) };
    let spec = TopolvmSpec { nodes: vec![node], ..TopolvmSpec::nodes(1)? };
    let spec = product_images::in_pods(spec, kustomization(Mode::Stock).write(&directory.join("first"))?)?;
    let Topolvm { cluster, nodes } = fresh_cluster::up(&directory.join("c"), &spec)?;
    let measured = nodes.first().context("the cluster has no node").and_then(|node| measure(directory, &cluster, node));
    cluster.down(None)?;
    measured
}

fn measure(directory: &Path, cluster: &Cluster, node: &Node) -> Result<Vec<Figure>> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build().context("start a runtime")?;
    let client = runtime.block_on(cluster.client())?;
    let pod = |mode| pod_mebibytes(directory, cluster, node, mode);
    let figure = |name, value, goal| Figure { name, value, unit: "MiB", goal };
    pod(Mode::Stock)?;
    cluster.apply(&virtual_node().to_string())?;
    runtime.block_on(create_volumes(&client))?;
    let mut figures = vec![
        figure("controller.pod.rss_mib.stock", pod(Mode::Stock)?, f64::INFINITY),
        figure("controller.pod.rss_mib", pod(Mode::Embedded)?, 20.0),
    ];
    runtime.block_on(create_foreign(&client))?;
    figures.push(figure("controller.pod.rss_mib.foreign.stock", pod(Mode::Stock)?, f64::INFINITY));
    figures.push(figure("controller.pod.rss_mib.foreign", pod(Mode::Embedded)?, 60.0));
    Ok(figures)
}

/// Rolls the controllers out, and returns the MiB of the pod at rest.
fn pod_mebibytes(directory: &Path, cluster: &Cluster, node: &Node, mode: Mode) -> Result<f64> {
    roll_out(cluster, &kustomization(mode).write(&directory.join(format!("{mode:?}")))?)?;
    restarts::wait_for_old_pods(cluster, "app.kubernetes.io/component=controller")?;
    sleep(AT_REST);
    Ok(largest_pod(cluster, node, "controller")?.mebibytes())
}

/// Returns the manifests of the mode, with one replica: a second one would only take memory and time of the node.
fn kustomization(mode: Mode) -> Kustomization<'static> {
    let components: &[&str] = match mode {
        Mode::Stock => &["sidecars"],
        Mode::Embedded => &[],
    };
    let replicas = json!([{"op": "replace", "path": "/spec/replicas", "value": 1}]);
    let patches = vec![patch("Deployment", Some("topolvm-controller"), &replicas)];
    Kustomization { base: "overlays/lvmd", components, patches, ..Kustomization::default() }
}

/// Creates bound claims with volumes of the driver, on a node that is an object only.
async fn create_volumes(client: &Client) -> Result<()> {
    let api: Api<LogicalVolume> = Api::all(client.clone());
    let create = |number: usize| {
        let api = api.clone();
        async move {
            let name = format!("own-{number}");
            let volume = serde_json::from_value(json!({
                "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume", "metadata": {"name": name},
                "spec": {"name": name, "nodeName": "virtual", "size": "1Gi"},
            }))?;
            api.create(&PostParams::default(), &volume).await.context("create a LogicalVolume")?;
            create_claim(client, &name, "topolvm.io").await
        }
    };
    stream::iter((0..VOLUMES).map(create)).buffer_unordered(CONCURRENT_REQUESTS).try_collect::<()>().await?;
    wait_until_bound(client, VOLUMES).await
}

/// Creates bound claims of another driver.
async fn create_foreign(client: &Client) -> Result<()> {
    let names = (0..FOREIGN).map(|number| format!("foreign-{number}"));
    let create = async |name: String| create_claim(client, &name, "other.example").await;
    stream::iter(names.map(create)).buffer_unordered(CONCURRENT_REQUESTS).try_collect::<()>().await?;
    wait_until_bound(client, VOLUMES + FOREIGN).await
}

/// Creates a claim and its volume as a provisioner does, so that kube-controller-manager only has to set their phases.
async fn create_claim(client: &Client, name: &str, driver: &str) -> Result<()> {
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(client.clone());
    let claim = object(json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "annotations": {
            "pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes",
            "volume.kubernetes.io/storage-provisioner": driver,
        }},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "static", "volumeName": name,
        },
    }))?;
    let claim: PersistentVolumeClaim = claims.create(&PostParams::default(), &claim).await.context("create a claim")?;
    let volumes: Api<PersistentVolume> = Api::all(client.clone());
    let volume = object(json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": {"pv.kubernetes.io/provisioned-by": driver}},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": "static",
            "persistentVolumeReclaimPolicy": "Retain", "csi": {"driver": driver, "volumeHandle": name},
            "claimRef": {"namespace": "default", "name": name, "uid": claim.metadata.uid},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "topology.topolvm.io/node", "operator": "In", "values": ["virtual"]},
            ]}]}},
        },
    }))?;
    volumes.create(&PostParams::default(), &volume).await.context("create a PersistentVolume")?;
    Ok(())
}

fn object<T: serde::de::DeserializeOwned>(value: Value) -> Result<T> {
    serde_json::from_value(value).context("an object that cannot be read")
}

/// Waits until this many volumes are Bound, so that what kube-controller-manager changes is not measured.
async fn wait_until_bound(client: &Client, wanted: usize) -> Result<()> {
    let api: Api<PersistentVolume> = Api::all(client.clone());
    let deadline = Instant::now() + LIMIT;
    loop {
        let volumes = api.list(&ListParams::default()).await.context("list PersistentVolumes")?;
        let is_bound = |volume: &&PersistentVolume| {
            volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
        };
        let bound = volumes.items.iter().filter(is_bound).count();
        if bound >= wanted {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "{bound} of {wanted} PersistentVolumes are Bound");
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}
