//! The program: connects the parts of the agent and starts its tasks.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use futures::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::Client;
use linux_mount::{DeviceNumber, Mounter, SystemMounter};
use lvm::{Host, Placement};
use lvmd_client::{LvmdClient, LvmdError};
use node_inventory::Inventory;
use node_io_limits::{IoLimiter, PodRequests, PodWatch};
use node_orphans::{LvsWithoutObject, NodeAccess, OrphanHandler};
use node_storage::StoragePublisher;
use prometheus_client::registry::Registry;
use published_pods::{PodInfo, PublishedPods};
use tokio::sync::mpsc;
use tonic::service::Routes;
use topolvm_api::{ApiFlavor, INVENTORY_AUDIENCE, LogicalVolume, VolumeIoLimits};
use topolvm_kube::{AccessReviews, Credentials, LogicalVolumeWriter, ReconcileMetrics};
use topolvm_proto::csi::identity_server::IdentityServer;
use topolvm_proto::csi::node_server::NodeServer;
use topolvm_runtime::grpc::{RpcMetrics, observed, serve};
use topolvm_runtime::listen::Listen;
use topolvm_runtime::{CancellationToken, ConfigError, LogArgs, Program, RetiredArgs, Tasks, admin, error_chain, unix};

use crate::args::{Args, Config, LvmdConfig};
use crate::capacity::Capacity;
use crate::csi::{Agent, AgentOptions, IdentityService, NodeService, ReadinessCheck, Registrar};
use crate::limit_io::LimitIo;
use crate::reconcile::{
    Clients, FindDeviceUses, HandleOrphans, HostAccess, Listing, Reconciler, Triggers, VolumeGauges,
};
use crate::stacked_mounts;
use crate::topology_label::TopologyLabel;
use crate::volume_devices::VolumeDevices;
use crate::volumes::Volumes;

/// Directory of the device nodes that versions before 0.33 made.
const LEGACY_DEVICES: &str = "/dev/topolvm";

/// Name of the directory with the records of pods that have volumes.
const PODS: &str = "published-pods";

impl Program for Args {
    const NAME: &'static str = "topolvm-node";
    type Config = Config;

    fn log(&self) -> &LogArgs {
        &self.log
    }

    fn retired(&self) -> Option<&RetiredArgs> {
        Some(&self.retired)
    }

    fn config(self) -> Result<Config, ConfigError> {
        self.try_into()
    }

    async fn run(config: Config, tasks: Tasks, shutdown: CancellationToken) -> anyhow::Result<()> {
        let (client, credentials) = topolvm_kube::client("topolvm-node").await?;
        #[expect(clippy::disallowed_methods, reason = "the process decides what time it is")]
        let now = Timestamp::now;
        let mounter = system_mounter(&format!("topolvm-node.{}", config.flavor.driver_name()));
        start(config, client, credentials, mounter, now, &tasks, &shutdown).await
    }
}

/// Makes the mounter of the machine. The programs of filesystems run outside of the agent's container, in a cgroup of
/// this name on the host.
fn system_mounter(cgroup: &str) -> SystemMounter {
    let mounter = SystemMounter::new();
    match Placement::find(cgroup) {
        Placement::Host => mounter,
        Placement::Outside(processes) => mounter.in_cgroup(processes),
        Placement::Inside(why) => {
            tracing::warn!(
                why,
                "mkfs and e2fsck share the limits of this container; give it memory for checks of the largest volume"
            );
            mounter
        }
    }
}

impl<R: Host + Clone> LvmdConfig<R> {
    /// Returns a client of lvmd. One that is embedded runs until `shutdown` is cancelled.
    fn connect(
        self,
        csi_socket: &Path,
        registry: &mut Registry,
        metrics: &RpcMetrics,
        tasks: &Tasks,
        shutdown: CancellationToken,
    ) -> anyhow::Result<LvmdClient> {
        match self {
            Self::Socket(socket) => LvmdClient::connect(&socket)
                .with_context(|| format!("--lvmd-socket {} cannot be used", socket.display())),
            Self::Embedded(settings) => {
                let services = ::lvmd::embed(*settings, csi_socket, registry, tasks, shutdown)?;
                Ok(LvmdClient::over(observed(services, metrics)))
            }
        }
    }
}

impl<M: Mounter> HandleOrphans for OrphanHandler<M> {
    fn handle(&self, found: Listing) -> BoxFuture<'_, ()> {
        let Listing { without_object, volumes, made, is_incomplete } = found;
        let lvs = without_object.into_values().collect();
        Box::pin(self.check(LvsWithoutObject { lvs, volumes, made, is_incomplete }))
    }

    fn next_check(&self) -> Option<Duration> {
        Self::next_check(self)
    }
}

impl LimitIo for IoLimiter {
    fn limit_before_use<'a>(
        &'a self,
        volume: &'a LogicalVolume,
        device: DeviceNumber,
        pod: &'a PodInfo,
    ) -> BoxFuture<'a, ()> {
        Box::pin(Self::limit_before_use(self, volume, device, pod))
    }

    fn limit_volume<'a>(&'a self, volume: &'a LogicalVolume) -> BoxFuture<'a, Result<bool, LvmdError>> {
        Box::pin(Self::limit_volume(self, volume))
    }

    fn condition(&self, volume: &LogicalVolume, now: Timestamp) -> Option<Condition> {
        Self::condition(self, volume, now)
    }

    fn volumes_of_pod(&self, uid: &str) -> Vec<String> {
        Self::volumes_of_pod(self, uid)
    }

    fn rates(&self, id: &str) -> VolumeIoLimits {
        Self::rates(self, id)
    }

    fn forget(&self, volume: &LogicalVolume) {
        Self::forget(self, volume);
    }
}

/// Starts the tasks of the agent, after the end of another one that serves its CSI socket. The socket is served when
/// this returns, whether or not lvmd and the API server answer yet, unless the shutdown has begun. `credentials` are
/// those of `client`, `now` is the clock.
pub async fn start<M: Mounter + Clone, R: Host + Clone>(
    config: Config<R>,
    client: Client,
    credentials: Credentials,
    mounter: M,
    now: fn() -> Timestamp,
    tasks: &Tasks,
    shutdown: &CancellationToken,
) -> anyhow::Result<()> {
    let Config {
        flavor,
        node,
        csi_socket,
        lvmd,
        metrics,
        health,
        inventory,
        stage_volumes,
        embeds_registrar,
        kubelet_dir,
        node_labels,
        extended_resources,
        io_limits,
        orphans,
    } = config;

    // Two agents of a node would reconcile the same objects
    if !wait_for_predecessor(&csi_socket, health.clone(), shutdown).await {
        return Ok(());
    }
    let mut registry = Registry::default();
    let rpc_metrics = RpcMetrics::register(&mut registry);
    let reconcile_metrics = ReconcileMetrics::register(&mut registry);
    let lvmd_shutdown = CancellationToken::new();
    let lvmd = lvmd.connect(&csi_socket, &mut registry, &rpc_metrics, tasks, lvmd_shutdown.clone())?;
    let capacity = Capacity::new(flavor, node.clone(), lvmd.clone(), &mut registry).selecting(node_labels.clone());
    let capacity = capacity.showing_resources(extended_resources);
    let label = TopologyLabel::new(flavor, node.clone(), node_labels.clone(), client.clone());
    let storage = StoragePublisher { flavor, node: node.clone(), selection: node_labels, lvmd: lvmd.clone(), now };
    let device_classes = capacity.device_classes();
    let gauges = VolumeGauges::register(&mut registry, &node);
    stacked_mounts::register(&mut registry, &node, stacked_mounts::unmount_all(&mounter, &kubelet_dir).await);

    let own = LogicalVolumeWriter::default();
    let lists = Inventory { lvmd: lvmd.clone(), device_classes: device_classes.clone(), volumes: own.as_reader() };
    let volumes = Volumes::new(flavor, own.as_reader(), client.clone(), node.clone());
    let device_uses = FindDeviceUses::new(mounter.clone());
    let pods = load_published_pods(&csi_socket, &mounter).await;
    let pod_watch = io_limits.of_pods.then(|| PodWatch::new(flavor, client.clone(), node.clone()));
    let requests = pod_watch.as_ref().map_or_else(PodRequests::none, PodWatch::requests);
    let events = volumes.events.recorder.clone();
    let limiter = IoLimiter::new(flavor, lvmd.clone(), mounter.clone(), requests, pods.clone(), events);
    let io_limiter: Arc<dyn LimitIo> = Arc::new(limiter.clone());
    let options = AgentOptions {
        legacy_devices: LEGACY_DEVICES.into(),
        stages: stage_volumes,
        published_pods: pods,
        io_limiter: Arc::clone(&io_limiter),
    };
    let agent = Agent::new(volumes, lvmd.clone(), mounter.clone(), device_classes.clone(), options);
    let devices = VolumeDevices::default();
    let page = agent.volume_metrics(devices.clone()).into_page(registry);
    let reports = agent.growth_reports(devices.clone(), client.clone());
    tasks.spawn("growth reports", reports.run(shutdown.clone()));
    let (publishes, published) = mpsc::unbounded_channel();
    tasks.spawn("I/O limits", limiter.clone().watch(publishes.clone(), shutdown.clone()));
    let (pod_changes, pods) = mpsc::unbounded_channel();
    let readiness = Arc::new(ReadinessCheck::new(lvmd.clone(), client.clone(), credentials.clone()));
    let csi = csi_services(flavor, node.clone(), agent, Arc::clone(&readiness), tasks, publishes, shutdown);
    serve_csi(&csi_socket, &node, csi, rpc_metrics.clone(), tasks, shutdown.clone(), lvmd_shutdown).await?;
    tasks.spawn("credentials", credentials.run(shutdown.clone()));
    metrics.start(page, AccessReviews::new(client.clone()), tasks, shutdown);
    serve_health(health, readiness, tasks, shutdown.clone());
    if let Some(inventory) = inventory {
        let reviews = AccessReviews::new(client.clone()).taking_audience(INVENTORY_AUDIENCE);
        inventory.start(lists, reviews, tasks, shutdown);
    }

    storage.start(client.clone(), capacity.node_object(), tasks, shutdown);
    tasks.spawn("topology label", label.run(capacity.node_object(), shutdown.clone()));
    let lvmd_returns = capacity.start(client.clone(), tasks, shutdown);
    let triggers = Triggers { lvmd_returns, device_classes, published, pods, gauges };
    let clients = Clients::new(flavor, node.clone(), client.clone(), lvmd.clone(), now);
    let (cluster, events) = (clients.cluster(), clients.event_recorder());
    let access = NodeAccess { flavor, node, cluster, events, lvmd, mounter, now };
    let orphans = Box::new(OrphanHandler::new(orphans, client, access));
    let reconciler = Reconciler::new(clients, HostAccess { device_uses, devices, io_limiter, orphans });
    tasks.spawn("LogicalVolumes", Arc::new(reconciler).run(own, triggers, reconcile_metrics, shutdown.clone()));
    if let Some(pod_watch) = pod_watch {
        tasks.spawn("pods", pod_watch.follow(pod_changes, shutdown.clone()));
    }
    if embeds_registrar {
        // Last, because kubelet calls back as soon as it sees the socket
        tasks.spawn("registrar", Registrar::new(flavor, &kubelet_dir, &csi_socket).run(rpc_metrics, shutdown.clone()));
    }
    Ok(())
}

/// Waits until no other agent of the node serves the socket, and returns true; false if the shutdown begins before.
/// Probes of the pod are answered meanwhile: with `maxSurge` the other agent ends when this pod is ready.
async fn wait_for_predecessor(socket: &Path, health: Listen, shutdown: &CancellationToken) -> bool {
    let answer_probes = async {
        let router = admin::health_router(|| async { Ok(()) });
        if let Err(error) = admin::serve(health, router, shutdown.clone()).await {
            tracing::warn!(
                error = error_chain(&error),
                "cannot answer probes while another topolvm-node serves the socket"
            );
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        biased;
        is_free = unix::wait_until_free(socket, shutdown) => is_free,
        () = answer_probes => false,
    }
}

/// Loads which pods have volumes from the directory of the CSI socket, which outlives the agent's container.
async fn load_published_pods<M: Mounter>(csi_socket: &Path, mounter: &M) -> PublishedPods {
    let mounted = mounter.mount_points().await.inspect_err(|error| {
        tracing::warn!(error = error_chain(error), "cannot determine which volumes are still published");
    });
    PublishedPods::load(csi_socket.with_file_name(PODS), mounted.ok()).await
}

/// Returns the CSI services of a node. The id of each volume that is published or unpublished is sent to `publishes`.
fn csi_services<M: Mounter>(
    flavor: ApiFlavor,
    node: String,
    agent: Agent<M>,
    readiness: Arc<ReadinessCheck>,
    tasks: &Tasks,
    publishes: mpsc::UnboundedSender<String>,
    shutdown: &CancellationToken,
) -> Routes {
    let calls = NodeService::new(flavor, node, Arc::new(agent), tasks.clone()).notifying_published(publishes);
    tasks.spawn("discards", calls.discard_free_blocks(shutdown.clone()));
    Routes::new(IdentityServer::new(IdentityService::new(flavor, readiness))).add_service(NodeServer::new(calls))
}

/// Serves `/healthz`, and `/readyz`, which is CSI's `Probe` over HTTP for kubelet, unless it is off.
fn serve_health(address: Listen, readiness: Arc<ReadinessCheck>, tasks: &Tasks, shutdown: CancellationToken) {
    let router = admin::health_router(move || {
        let readiness = Arc::clone(&readiness);
        async move { readiness.check().await.map_err(|error| error_chain(&error)) }
    });
    tasks.spawn("health", async move { Ok(admin::serve(address, router, shutdown).await?) });
}

/// Serves CSI, and ends an embedded lvmd after that: calls that run need it to their end.
async fn serve_csi(
    socket: &Path,
    node: &str,
    csi: Routes,
    metrics: RpcMetrics,
    tasks: &Tasks,
    shutdown: CancellationToken,
    lvmd_shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let listener = unix::listen(socket).await?;
    tracing::info!(socket = %socket.display(), node, "serving CSI");
    tasks.spawn("CSI", async move {
        let _ends_lvmd = lvmd_shutdown.drop_guard();
        serve(listener, csi, &metrics, shutdown).await
    });
    Ok(())
}
