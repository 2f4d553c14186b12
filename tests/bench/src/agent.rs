//! Measures the agent and the controller with a real API server and an lvmd on a fake LVM, so that a thousand volumes
//! are quick: memory, and bytes received for other nodes' volumes.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;
use testbed::cluster::Cluster;
use testbed::process::Process;
use testbed::topolvm::{self, Topolvm, TopolvmSpec};
use tokio::runtime;
use tonic::transport::{Channel, Endpoint};
use topolvm_proto::csi::DeleteVolumeRequest;
use topolvm_proto::csi::controller_client::ControllerClient;
use topolvm_runtime::{CancellationToken, Tasks};

use crate::api_client;
use crate::create;
use crate::figure::{Figure, Selector};
use crate::memory::{AT_REST, ResidentMemory};

/// Prefixes of the names of its figures.
pub(crate) const FAMILIES: [&str; 2] = ["node.", "controller.rss_mib"];
/// Number of volumes for which memory is measured, and of other nodes with a volume each.
const VOLUMES: usize = 1000;
const AT_ONCE: usize = 20;
/// Number of measurements. The smallest result counts, because periodic traffic (once a minute) is not in all of them.
const WINDOWS: usize = 3;

/// Starts a control plane and the programs in `directory`, and measures the selected figures.
pub(crate) fn run(directory: &Path, wanted: &Selector<'_>) -> Result<Vec<Figure>> {
    let spec = TopolvmSpec { nodes: Vec::new(), embeds_controllers: false, ..TopolvmSpec::nodes(0)? };
    let topolvm = topolvm::up_with(&directory.join("c"), &spec)?;
    let figures = measure(&topolvm, &spec, wanted);
    topolvm.cluster.down(None)?;
    figures
}

fn measure(topolvm: &Topolvm, spec: &TopolvmSpec, wanted: &Selector<'_>) -> Result<Vec<Figure>> {
    let cluster = &topolvm.cluster;
    let lvmd_socket = cluster.directory().join("lvmd.sock");
    let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let shutdown = CancellationToken::new();
    let tasks = Tasks::new(shutdown.clone());
    runtime.block_on(create::serve_lvmd(&lvmd_socket, &tasks, &shutdown))?;
    create::start_agent(cluster, spec, &lvmd_socket)?;
    let figures = cluster.netns().enter(|| {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(measure_figures(cluster, wanted))
    })?;
    shutdown.cancel();
    runtime.block_on(tasks.wait())?;
    figures
}

async fn measure_figures(cluster: &Cluster, wanted: &Selector<'_>) -> Result<Vec<Figure>> {
    let socket = topolvm::controller_socket(cluster);
    let channel = Endpoint::try_from(format!("unix:{}", socket.display()))?.connect().await?;
    let csi = ControllerClient::new(channel);
    let mut figures = Vec::new();
    if wanted("node.rss_mib") || wanted("controller.rss_mib") {
        figures.extend(measure_memory(cluster, &csi).await?);
    }
    if wanted("node.foreign_bytes") {
        let value = measure_foreign_bytes(cluster, &csi).await?;
        figures.push(Figure { name: "node.foreign_bytes", value, unit: "bytes", goal: 0.0 });
    }
    Ok(figures)
}

async fn create_volume(csi: &ControllerClient<Channel>, number: usize) -> Result<String> {
    create::create_volume(&mut csi.clone(), number).await
}

async fn delete_volume(csi: &ControllerClient<Channel>, volume_id: String) -> Result<()> {
    let request = DeleteVolumeRequest { volume_id, ..DeleteVolumeRequest::default() };
    csi.clone().delete_volume(request).await?;
    Ok(())
}

/// Measures the memory of both programs without volumes and with [`VOLUMES`].
async fn measure_memory(cluster: &Cluster, csi: &ControllerClient<Channel>) -> Result<Vec<Figure>> {
    // The memory of the start-up is released, each operation has run once, and no volume exists
    tokio::time::sleep(AT_REST).await;
    for number in 0..AT_ONCE {
        delete_volume(csi, create_volume(csi, number).await?).await?;
    }
    let rest = ProgramMemory::read_at_rest(cluster).await?;
    let creating = (0..VOLUMES).map(|number| create_volume(csi, number));
    let created: Vec<String> = stream::iter(creating).buffer_unordered(AT_ONCE).try_collect().await?;
    let full = ProgramMemory::read_at_rest(cluster).await?;
    let deleting = created.into_iter().map(|id| delete_volume(csi, id));
    stream::iter(deleting).buffer_unordered(AT_ONCE).try_for_each(async |()| Ok(())).await?;

    let mib = |name, value, goal| Figure { name, value, unit: "MiB", goal };
    // Figures without a separate goal use the memory of freshly started TopoLVM programs
    Ok(vec![
        mib("node.rss_mib", rest.node.mebibytes(), 12.0),
        mib("node.rss_mib.anon", rest.node.anonymous_mebibytes(), 11.1),
        mib("node.rss_mib.1000", full.node.mebibytes(), 16.0),
        mib("node.rss_mib.1000.anon", full.node.anonymous_mebibytes(), 11.1),
        mib("controller.rss_mib", rest.controller.mebibytes(), 13.0),
        mib("controller.rss_mib.anon", rest.controller.anonymous_mebibytes(), 11.7),
        mib("controller.rss_mib.1000", full.controller.mebibytes(), 20.0),
        mib("controller.rss_mib.1000.anon", full.controller.anonymous_mebibytes(), 11.7),
    ])
}

/// Resident memory of the agent and the controller.
struct ProgramMemory {
    node: ResidentMemory,
    controller: ResidentMemory,
}

impl ProgramMemory {
    async fn read_at_rest(cluster: &Cluster) -> Result<Self> {
        tokio::time::sleep(AT_REST).await;
        let of = |name| ResidentMemory::read(pid(cluster, name)?);
        Ok(Self { node: of(topolvm::NODE)?, controller: of(topolvm::CONTROLLER)? })
    }
}

/// Returns the process id of a program of the cluster.
pub(crate) fn pid(cluster: &Cluster, name: &str) -> Result<u32> {
    let file = cluster.directory().join("run").join(format!("{name}.pid"));
    Ok(Process::from_file(&file)?.with_context(|| format!("{name} does not run"))?.pid)
}

/// Returns the bytes that the agent received from the API server while the volume of each of many other nodes was
/// changed: the least of a few measurements.
async fn measure_foreign_bytes(cluster: &Cluster, csi: &ControllerClient<Channel>) -> Result<f64> {
    // Events of the agent's own volumes are counted too
    let before = received_bytes(cluster)?;
    delete_volume(csi, create_volume(csi, 0).await?).await?;
    let own_bytes = bytes_since(&before, &received_bytes(cluster)?);
    ensure!(own_bytes > 0.0, "the agent has made and removed a volume, and heard nothing of it");

    let client = api_client::connect(&cluster.inner_kubeconfig()).await?;
    let api: Api<topolvm_api::LogicalVolume> = Api::all(client);
    let volumes = (0..VOLUMES).map(|number| {
        let (api, name) = (&api, format!("foreign{number}"));
        async move {
            let volume = json!({
                "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume", "metadata": {"name": name},
                "spec": {"name": name, "nodeName": format!("other{number}"), "size": "1Gi"},
            });
            api.create(&PostParams::default(), &serde_json::from_value(volume)?).await?;
            anyhow::Ok(())
        }
    });
    stream::iter(volumes).buffer_unordered(AT_ONCE).try_for_each(async |()| Ok(())).await?;
    let mut least = f64::INFINITY;
    for window in 0..WINDOWS {
        let before = received_bytes(cluster)?;
        let changes = (0..VOLUMES).map(|number| {
            let api = &api;
            let patch = json!({"spec": {"size": format!("{}Gi", window + 2)}});
            async move {
                api.patch(&format!("foreign{number}"), &PatchParams::default(), &Patch::Merge(&patch)).await?;
                anyhow::Ok(())
            }
        });
        stream::iter(changes).buffer_unordered(AT_ONCE).try_for_each(async |()| Ok(())).await?;
        least = least.min(bytes_since(&before, &received_bytes(cluster)?));
    }
    Ok(least)
}

/// Returns the bytes received between two measurements, also by new connections.
fn bytes_since(before: &BTreeMap<String, f64>, after: &BTreeMap<String, f64>) -> f64 {
    after.iter().map(|(port, bytes)| bytes - before.get(port).copied().unwrap_or(0.0)).sum()
}

/// Returns the bytes that each TCP connection of the agent has received, by its own address. lvmd and the CSI clients
/// use unix sockets, and its metrics are not served.
fn received_bytes(cluster: &Cluster) -> Result<BTreeMap<String, f64>> {
    let output = cluster.command("ss").args(["-tinpHO", "state", "established"]).output().context("run ss")?;
    let owner = format!("pid={},", pid(cluster, topolvm::NODE)?);
    let text = String::from_utf8_lossy(&output.stdout);
    let connections: BTreeMap<String, f64> =
        text.lines().filter(|line| line.contains(&owner)).map(parse_connection).collect::<Result<_>>()?;
    ensure!(!connections.is_empty(), "the agent {owner} has no connection: {text}");
    Ok(connections)
}

fn parse_connection(line: &str) -> Result<(String, f64)> {
    let field = |name: &str| line.split_whitespace().find_map(|word| word.strip_prefix(name));
    // With a state given, the columns are the two queues, the own address and the other one
    let own = line.split_whitespace().nth(2).context("no address")?;
    let bytes = field("bytes_received:").unwrap_or("0").parse()?;
    Ok((own.to_owned(), bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_known_by_its_own_address() {
        let line = "0 0 10.77.0.1:40000 10.96.0.1:443 users:((\"topolvm-node\",pid=7,fd=9)) \
                    cubic bytes_sent:9 bytes_received:1234 segs_out:3";
        assert_eq!(parse_connection(line).unwrap(), ("10.77.0.1:40000".to_owned(), 1234.0));
    }
}
