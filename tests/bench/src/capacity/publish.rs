//! Measures the publisher of CSIStorageCapacity objects on a real API server: 500 Nodes, which are objects without
//! machines, and three StorageClasses.

use std::collections::BTreeMap;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSIStorageCapacity, StorageClass};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use testbed::topolvm::{self, CONTROLLER, Topolvm, TopolvmSpec};
use tokio::runtime;

use super::{NAMESPACE, publishing};
use crate::figure::Figure;

const NODES: usize = 500;
const CLASSES: [&str; 3] = ["ssd", "hdd", "nvme"];

/// Number of concurrent requests that create and change the Nodes.
const CONCURRENT_REQUESTS: usize = 16;

/// Timeout of each step.
const LIMIT: Duration = Duration::from_mins(2);

/// The time in which nothing should be written.
const AT_REST: Duration = Duration::from_secs(10);

/// Starts a control plane with the controller, and measures it.
pub(super) fn run(directory: &Path) -> Result<Vec<Figure>> {
    let spec = publishing(0)?;
    let topolvm = topolvm::up_with(directory, &spec)?;
    let figures = measure(&topolvm, &spec);
    topolvm.cluster.down(None)?;
    figures
}

fn measure(topolvm: &Topolvm, spec: &TopolvmSpec) -> Result<Vec<Figure>> {
    let cluster = &topolvm.cluster;
    cluster.stop(CONTROLLER, Duration::from_secs(10))?;
    let runtime = runtime::Builder::new_current_thread().enable_all().build().context("start a runtime")?;
    let client = runtime.block_on(cluster.client())?;
    runtime.block_on(create_objects(&client))?;
    let start = Instant::now();
    topolvm::start_controller(cluster, spec)?;
    let wanted = NODES * CLASSES.len();
    runtime.block_on(wait_until(&client, |objects| objects.len() >= wanted))?;
    let publish = start.elapsed();
    let before = runtime.block_on(list(&client))?;
    // What a cluster does all the time: labels and conditions of Nodes change
    runtime.block_on(patch_nodes(&client, |_| json!({"metadata": {"annotations": {"example.com/beat": "1"}}})))?;
    thread::sleep(AT_REST);
    let after = runtime.block_on(list(&client))?;
    let idle_writes = after.iter().filter(|(name, object)| before.get(*name) != Some(object)).count()
        + before.keys().filter(|name| !after.contains_key(*name)).count();
    let start = Instant::now();
    runtime.block_on(patch_nodes(&client, |number| json!({"metadata": {"annotations": capacities(number, 2)}})))?;
    let changed = |objects: &Objects| objects.values().filter(|(_, is_new)| *is_new).count() >= wanted;
    runtime.block_on(wait_until(&client, changed))?;
    let follow = start.elapsed();
    let figure = |name, value, unit, goal| Figure { name, value, unit, goal };
    #[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "a small count is exact in a float")]
    let idle_writes = idle_writes as f64;
    Ok(vec![
        figure("capacity.publish_500x3_s", publish.as_secs_f64(), "s", 5.0),
        figure("capacity.publish_500x3_s.all_change", follow.as_secs_f64(), "s", f64::INFINITY),
        figure("capacity.idle_writes", idle_writes, "writes", 0.0),
    ])
}

fn node_name(number: usize) -> String {
    format!("node-{number:03}")
}

/// Capacity annotations of a node; the second of all differ from the first.
fn capacities(number: usize, generation: usize) -> BTreeMap<String, String> {
    let gib = number * 10 + generation;
    let annotation = |class: &str| (format!("capacity.topolvm.io/{class}"), (gib << 30).to_string());
    CLASSES.iter().map(|class| annotation(class)).collect()
}

async fn create_objects(client: &Client) -> Result<()> {
    let classes: Api<StorageClass> = Api::all(client.clone());
    for class in CLASSES {
        let class = serde_json::from_value(json!({
            "metadata": {"name": class}, "provisioner": "topolvm.io", "volumeBindingMode": "WaitForFirstConsumer",
            "parameters": {"topolvm.io/device-class": class},
        }))?;
        classes.create(&PostParams::default(), &class).await.context("create a StorageClass")?;
    }
    // That of the manifests would be a fourth
    classes
        .delete("topolvm-provisioner", &kube::api::DeleteParams::default())
        .await
        .context("delete a StorageClass")?;
    let nodes: Api<Node> = Api::all(client.clone());
    let create = |number: usize| {
        let nodes = nodes.clone();
        async move {
            let name = node_name(number);
            let node = serde_json::from_value(json!({"metadata": {
                "name": name, "labels": {"topology.topolvm.io/node": name}, "annotations": capacities(number, 1),
            }}))?;
            nodes.create(&PostParams::default(), &node).await.context("create a Node")?;
            Ok(())
        }
    };
    futures::stream::iter((0..NODES).map(create)).buffer_unordered(CONCURRENT_REQUESTS).try_collect().await
}

async fn patch_nodes(client: &Client, patch: impl Fn(usize) -> serde_json::Value) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    let change = |number: usize| {
        let (nodes, patch) = (nodes.clone(), Patch::Merge(patch(number)));
        async move {
            nodes.patch_metadata(&node_name(number), &PatchParams::default(), &patch).await.context("patch a Node")?;
            Ok(())
        }
    };
    futures::stream::iter((0..NODES).map(change)).buffer_unordered(CONCURRENT_REQUESTS).try_collect().await
}

/// Objects by name: their versions, and whether they are of the second capacities.
type Objects = BTreeMap<String, (Option<String>, bool)>;

async fn list(client: &Client) -> Result<Objects> {
    let api: Api<CSIStorageCapacity> = Api::namespaced(client.clone(), NAMESPACE);
    let is_new = |object: &CSIStorageCapacity| {
        let labels = object.node_topology.as_ref().and_then(|topology| topology.match_labels.as_ref());
        let node = labels.and_then(|labels| labels.get("topology.topolvm.io/node"));
        let number = node.and_then(|name| name.strip_prefix("node-")?.parse::<u64>().ok());
        let bytes = object.capacity.as_ref().and_then(|capacity| topolvm_api::parse_bytes(capacity).ok());
        number.zip(bytes).is_some_and(|(number, bytes)| bytes >> 30 == number * 10 + 2)
    };
    let objects = api.list(&ListParams::default()).await.context("list CSIStorageCapacity objects")?;
    let row = |object: CSIStorageCapacity| (object.name_any(), (object.resource_version(), is_new(&object)));
    Ok(objects.into_iter().map(row).collect())
}

async fn wait_until(client: &Client, condition: impl Fn(&Objects) -> bool) -> Result<()> {
    let start = Instant::now();
    while !condition(&list(client).await?) {
        ensure!(start.elapsed() < LIMIT, "the capacity was not published in {LIMIT:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}
