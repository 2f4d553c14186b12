//! The program: connects the parts of the agent and starts its tasks.

use std::sync::Arc;

use ::lvmd::Settings;
use anyhow::Context as _;
use jiff::Timestamp;
use kube::Client;
use lvm::Host;
use prometheus_client::registry::Registry;
use tokio::sync::mpsc;
use tonic::service::Routes;
use topolvm_kube::{AccessReviews, LogicalVolumeWriter, ReconcileMetrics};
use topolvm_proto::csi::identity_server::IdentityServer;
use topolvm_proto::csi::node_server::NodeServer;
use topolvm_runtime::grpc::{RpcMetrics, observed, serve_any_authority};
use topolvm_runtime::{CancellationToken, ConfigError, LogArgs, Program, RetiredArgs, Tasks, unix};

use crate::args::{Args, Config, Embedded, LvmdConfig};
use crate::capacity::Capacity;
use crate::csi::{Agent, IdentityService, NodeService, ReadinessCheck, Registrar};
use crate::lvmd_client::LvmdClient;
use crate::mount::{Mounter, SystemMounter};
use crate::reconcile::{FindDeviceUses, LostVolumes, Reconciler, Triggers};
use crate::volumes::Volumes;

/// lvmd of an agent: a client, or what runs it in this process.
#[derive(Debug)]
pub enum LvmdBackend<R> {
    /// A client of an lvmd that runs already.
    Client(Box<LvmdClient>),
    /// Settings of an lvmd to run in this process.
    Embedded(Box<Settings<R>>),
}

/// Dependencies of the agent outside of it, which tests replace.
pub struct Dependencies<M, R> {
    /// Checked flags.
    pub config: Config,
    /// Client of the Kubernetes API server.
    pub client: Client,
    /// lvmd.
    pub lvmd: LvmdBackend<R>,
    /// Mounts of this machine.
    pub mounter: M,
    /// Clock.
    pub now: fn() -> Timestamp,
}

impl<M, R> std::fmt::Debug for Dependencies<M, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dependencies").field("config", &self.config).finish_non_exhaustive()
    }
}

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
        let lvmd = match &config.lvmd {
            LvmdConfig::Socket(socket) => LvmdBackend::Client(Box::new(
                LvmdClient::connect(socket)
                    .with_context(|| format!("--lvmd-socket {} cannot be used", socket.display()))?,
            )),
            LvmdConfig::Embedded(settings) => LvmdBackend::Embedded(settings.clone()),
        };
        let client = topolvm_kube::client("topolvm-node").await?;
        #[expect(clippy::disallowed_methods, reason = "the process decides what time it is")]
        let now = Timestamp::now;
        let dependencies = Dependencies { client, lvmd, mounter: SystemMounter::new(), now, config };
        start(dependencies, &tasks, &shutdown).await
    }
}

/// Starts the tasks of the agent. The CSI socket is served when this returns, whether or not lvmd and the API server
/// answer yet.
pub async fn start<M: Mounter, R: Host + Clone>(
    dependencies: Dependencies<M, R>,
    tasks: &Tasks,
    shutdown: &CancellationToken,
) -> anyhow::Result<()> {
    let Dependencies { config, client, lvmd, mounter, now } = dependencies;
    let Config { flavor, node, csi_socket, lvmd: _, metrics, stage_volumes, embedded, kubelet_dir } = config;

    let mut registry = Registry::default();
    let rpc_metrics = RpcMetrics::register(&mut registry);
    let reconcile_metrics = ReconcileMetrics::register(&mut registry);
    // The embedded lvmd ends after the CSI services: calls that run need it to their end
    let lvmd_shutdown = CancellationToken::new();
    let lvmd = match lvmd {
        LvmdBackend::Client(lvmd) => *lvmd,
        LvmdBackend::Embedded(settings) => {
            let services = ::lvmd::embed(*settings, &csi_socket, &mut registry, tasks, lvmd_shutdown.clone())?;
            LvmdClient::over(observed(services, &rpc_metrics))
        }
    };
    let capacity = Capacity::new(flavor, node.clone(), lvmd.clone(), &mut registry);
    let lost = LostVolumes::register(&mut registry, &node);
    let registry = Arc::new(registry);

    let own = LogicalVolumeWriter::default();
    let volumes = Volumes::new(flavor, own.as_reader(), client.clone(), node.clone());
    let agent =
        Agent::new(volumes, lvmd.clone(), mounter, capacity.device_classes(), "/dev/topolvm".into(), stage_volumes);
    let agent = Arc::new(agent);
    let uses = FindDeviceUses::new({
        let agent = Arc::clone(&agent);
        move |device, lv| {
            let agent = Arc::clone(&agent);
            async move { agent.find_device_uses(device, &lv).await }
        }
    });
    let (unpublishes, unpublished) = mpsc::unbounded_channel();
    let health = Arc::new(ReadinessCheck::new(lvmd.clone(), client.clone()));
    let csi = Routes::new(IdentityServer::new(IdentityService::new(flavor, health))).add_service(NodeServer::new(
        NodeService::new(flavor, node.clone(), agent, tasks.clone()).notifying_unpublished(unpublishes),
    ));

    let listener = unix::listen(&csi_socket).await?;
    tracing::info!(socket = %csi_socket.display(), node, "serving CSI");
    tasks.spawn("CSI", {
        let (metrics, shutdown) = (rpc_metrics.clone(), shutdown.clone());
        let ends_lvmd = lvmd_shutdown.drop_guard();
        async move {
            let _ends_lvmd = ends_lvmd;
            serve_any_authority(listener, csi, &metrics, shutdown).await
        }
    });
    metrics.start(registry, AccessReviews::new(client.clone()), tasks, shutdown);

    let device_classes = capacity.device_classes();
    let lvmd_returns = capacity.start(client.clone(), tasks, shutdown);
    let signals = Triggers { lvmd_returns, device_classes, unpublished, lost };
    let reconciler = Arc::new(Reconciler::new(flavor, node, client, lvmd, now).finding_uses(uses));
    tasks.spawn("LogicalVolumes", reconciler.run(own, signals, reconcile_metrics, shutdown.clone()));

    // Last, because kubelet calls back as soon as it sees the socket
    if embedded.contains(&Embedded::Registrar) {
        let registrar = Registrar::new(flavor, &kubelet_dir, &csi_socket);
        tasks.spawn("registrar", registrar.run(rpc_metrics, shutdown.clone()));
    }
    Ok(())
}
