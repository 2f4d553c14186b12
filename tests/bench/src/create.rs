//! Measures CSI CreateVolume from the controller over a real API server to the node agent and lvmd and back, with an
//! LVM that takes five milliseconds a command. For comparison, it sends the same number of plain requests to the API
//! server.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use lvm::Lvm;
use prometheus_client::registry::Registry;
use serde_json::json;
use testbed::cluster::Cluster;
use testbed::topolvm::{self, Topolvm, TopolvmSpec};
use tokio::runtime;
use tonic::transport::{Channel, Endpoint};
use topolvm_proto::csi::controller_client::ControllerClient;
use topolvm_proto::csi::volume_capability::access_mode::Mode;
use topolvm_proto::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use topolvm_proto::csi::{
    CapacityRange, CreateVolumeRequest, DeleteVolumeRequest, Topology, TopologyRequirement, VolumeCapability,
};
use topolvm_runtime::{CancellationToken, Tasks, grpc, unix};
use topolvm_testkit::lvm::FakeLvm;

use crate::api_client;
use crate::figure::{Figure, median};

pub(super) const NODE: &str = "bench";
const LVM_LATENCY: Duration = Duration::from_millis(5);
/// Number of first calls, which open connections and do not count.
const WARM_UP: usize = 10;
const CALLS: usize = 200;

/// Starts a control plane and the programs in `directory`, and measures the milliseconds of a create.
pub(crate) fn run(directory: &Path) -> Result<Vec<Figure>> {
    let spec = TopolvmSpec { nodes: Vec::new(), embeds_controllers: false, ..TopolvmSpec::nodes(0)? };
    let topolvm = topolvm::up_with(&directory.join("c"), &spec)?;
    let figures = measure(&topolvm, &spec);
    topolvm.cluster.down(None)?;
    figures
}

fn measure(topolvm: &Topolvm, spec: &TopolvmSpec) -> Result<Vec<Figure>> {
    let cluster = &topolvm.cluster;
    let lvmd_socket = cluster.directory().join("lvmd.sock");
    let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let shutdown = CancellationToken::new();
    let tasks = Tasks::new(shutdown.clone());
    runtime.block_on(serve_lvmd(&lvmd_socket, &tasks, &shutdown))?;
    start_agent(cluster, spec, &lvmd_socket)?;

    // Inside the cluster's namespace, so that the requests for comparison take the same path as the product's
    let samples = cluster.netns().enter(|| {
        let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(take_samples(&topolvm::controller_socket(cluster), &cluster.inner_kubeconfig()))
    })??;
    shutdown.cancel();
    runtime.block_on(tasks.wait())?;

    let (creates, round_trips): (Vec<f64>, Vec<f64>) = samples.into_iter().unzip();
    let create = median(creates).context("no samples")?;
    let round_trips = median(round_trips).context("no samples")?;
    Ok(vec![
        Figure { name: "csi.create.p50_ms", value: create, unit: "ms", goal: 120.0 },
        Figure { name: "csi.create.over_api", value: create / round_trips, unit: "ratio", goal: 3.0 },
    ])
}

/// Creates a Node without kubelet, and starts its agent on this machine.
pub(super) fn start_agent(cluster: &Cluster, spec: &TopolvmSpec, lvmd_socket: &Path) -> Result<()> {
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": NODE, "labels": {"topology.topolvm.io/node": NODE}},
    });
    cluster.apply(&node.to_string())?;
    let mut agent = cluster.command(spec.programs.join(topolvm::NODE));
    agent.args(["--nodename", NODE, "--embed=none", "--metrics-bind-address="]);
    agent.arg("--lvmd-socket").arg(lvmd_socket);
    agent.arg("--csi-socket").arg(cluster.directory().join("node.sock"));
    agent.env("KUBECONFIG", cluster.inner_kubeconfig());
    cluster.spawn(topolvm::NODE, &agent)
}

/// Serves lvmd in this process, on a fake LVM with 5 ms a command and 16 TiB.
pub(super) async fn serve_lvmd(socket: &Path, tasks: &Tasks, shutdown: &CancellationToken) -> Result<()> {
    let lvm = FakeLvm::new().with_group("vg", 1 << 44);
    lvm.set_latency(LVM_LATENCY);
    let config = "device-classes: [{name: ssd, volume-group: vg, default: true, spare-gb: 0}]";
    let classes = lvmd_config::Config::parse("bench", config)?.classes;
    let engine = lvmd_engine::Engine::start(
        Lvm::new(lvm),
        classes,
        lvmd_config::tags::InstanceId::new(Path::new("bench"), None),
        tasks,
        shutdown.clone(),
    )
    .await?;
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_service_status("", tonic_health::ServingStatus::Serving).await;
    let routes = lvmd::routes(&engine).add_service(health);
    let listener = unix::listen(socket).await?;
    let (metrics, token) = (grpc::RpcMetrics::register(&mut Registry::default()), shutdown.clone());
    tasks.spawn("lvmd", async move { grpc::serve(listener, routes, &metrics, token).await });
    Ok(())
}

/// Returns the milliseconds of each create, and of three requests to the API server right after it.
async fn take_samples(controller: &Path, kubeconfig: &Path) -> Result<Vec<(f64, f64)>> {
    let api = Api::default_namespaced(api_client::connect(kubeconfig).await?);
    let channel = Endpoint::try_from(format!("unix:{}", controller.display()))?.connect().await?;
    let mut csi = ControllerClient::new(channel);
    let mut samples = Vec::with_capacity(CALLS);
    for number in 0..WARM_UP + CALLS {
        let start = Instant::now();
        let volume = create_volume(&mut csi, number).await?;
        let create = milliseconds_since(start);
        let start = Instant::now();
        three_round_trips(&api, number).await?;
        let round_trips = milliseconds_since(start);
        csi.delete_volume(DeleteVolumeRequest { volume_id: volume, ..DeleteVolumeRequest::default() }).await?;
        api.delete(&volume_name(number), &DeleteParams::default()).await?;
        if number >= WARM_UP {
            samples.push((create, round_trips));
        }
    }
    Ok(samples)
}

pub(super) async fn create_volume(csi: &mut ControllerClient<Channel>, number: usize) -> Result<String> {
    let here = Topology { segments: [("topology.topolvm.io/node".to_owned(), NODE.to_owned())].into() };
    let request = CreateVolumeRequest {
        name: volume_name(number),
        capacity_range: Some(CapacityRange { required_bytes: 1 << 30, limit_bytes: 0 }),
        volume_capabilities: vec![VolumeCapability {
            access_type: Some(AccessType::Mount(MountVolume::default())),
            access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
        }],
        accessibility_requirements: Some(TopologyRequirement { requisite: vec![here.clone()], preferred: vec![here] }),
        ..CreateVolumeRequest::default()
    };
    let volume = csi.create_volume(request).await?.into_inner().volume.context("no volume in the answer")?;
    Ok(volume.volume_id)
}

/// Creates, patches and reads an object: the fewest requests to the API server that create a volume.
async fn three_round_trips(api: &Api<ConfigMap>, number: usize) -> Result<()> {
    let name = volume_name(number);
    let object: ConfigMap = serde_json::from_value(json!({"metadata": {"name": name}, "data": {"a": "1"}}))?;
    api.create(&PostParams::default(), &object).await?;
    api.patch(&name, &PatchParams::default(), &Patch::Merge(json!({"data": {"a": "2"}}))).await?;
    api.get(&name).await?;
    Ok(())
}

fn volume_name(number: usize) -> String {
    format!("bench-{number}")
}

fn milliseconds_since(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1000.0
}
