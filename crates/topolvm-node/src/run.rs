//! Puts the parts together.

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
use topolvm_runtime::grpc::{RpcMetrics, observed, serve_kubelet};
use topolvm_runtime::{CancellationToken, Tasks, unix};

use crate::capacity::Capacity;
use crate::csi::{Agent, IdentityService, NodeService};
use crate::lvmd::Lvmd;
use crate::mount::{Mounter, SystemMounter};
use crate::reconcile::{FindDeviceUses, LostVolumes, Reconciler, Signals};
use crate::{Config, Embedded, Health, LvmdPlace, Registrar, Volumes};

/// The lvmd of an agent.
#[derive(Debug)]
pub enum LvmdPart<R> {
    /// One that runs already.
    Client(Box<Lvmd>),
    /// One that is to run in this process.
    Embedded(Box<Settings<R>>),
}

/// What the agent is made of: everything outside of it that a test replaces.
pub struct Parts<M, R> {
    /// The checked flags.
    pub config: Config,
    /// The Kubernetes API server.
    pub client: Client,
    /// lvmd.
    pub lvmd: LvmdPart<R>,
    /// Mounts of the machine.
    pub mounter: M,
    /// What time it is.
    pub now: fn() -> Timestamp,
}

impl<M, R> std::fmt::Debug for Parts<M, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Runs the agent on the real machine.
pub(crate) async fn run(config: Config, tasks: Tasks, shutdown: CancellationToken) -> anyhow::Result<()> {
    let lvmd = match &config.lvmd {
        LvmdPlace::Socket(socket) => LvmdPart::Client(Box::new(
            Lvmd::connect(socket).with_context(|| format!("--lvmd-socket {} cannot be used", socket.display()))?,
        )),
        LvmdPlace::Embedded(settings) => LvmdPart::Embedded(settings.clone()),
    };
    let client = topolvm_kube::client("topolvm-node").await?;
    #[expect(clippy::disallowed_methods, reason = "the process decides what time it is")]
    let now = Timestamp::now;
    let parts = Parts { client, lvmd, mounter: SystemMounter::new(), now, config };
    start(parts, &tasks, &shutdown).await
}

/// Starts the agent. The CSI socket is served when this returns, whether or not lvmd and the API server answer yet.
pub async fn start<M: Mounter, R: Host + Clone>(
    parts: Parts<M, R>,
    tasks: &Tasks,
    shutdown: &CancellationToken,
) -> anyhow::Result<()> {
    let Parts { config, client, lvmd, mounter, now } = parts;
    let Config { flavor, node, csi_socket, lvmd: _, metrics, stage_volumes, embedded, kubelet_dir } = config;

    let mut registry = Registry::default();
    let rpc_metrics = RpcMetrics::register(&mut registry);
    let reconcile_metrics = ReconcileMetrics::register(&mut registry);
    // The embedded lvmd ends after the CSI services: calls that run need it to their end
    let lvmd_shutdown = CancellationToken::new();
    let lvmd = match lvmd {
        LvmdPart::Client(lvmd) => *lvmd,
        LvmdPart::Embedded(settings) => {
            let services = ::lvmd::embed(*settings, &csi_socket, &mut registry, tasks, lvmd_shutdown.clone())?;
            Lvmd::over(observed(services, &rpc_metrics))
        }
    };
    let capacity = Capacity::new(flavor, node.clone(), lvmd.clone(), &mut registry);
    let lost = LostVolumes::register(&mut registry, &node);
    let registry = Arc::new(registry);

    let own = LogicalVolumeWriter::default();
    let volumes = Volumes::new(flavor, own.as_reader(), client.clone(), node.clone());
    let agent = Agent::new(volumes, lvmd.clone(), mounter, capacity.pools(), "/dev/topolvm".into(), stage_volumes);
    let agent = Arc::new(agent);
    let uses = FindDeviceUses::new({
        let agent = Arc::clone(&agent);
        move |device, lv| {
            let agent = Arc::clone(&agent);
            async move { agent.device_uses(device, &lv).await }
        }
    });
    let (unpublishes, unpublished) = mpsc::unbounded_channel();
    let health = Arc::new(Health::new(lvmd.clone(), client.clone()));
    let csi = Routes::new(IdentityServer::new(IdentityService::new(flavor, health))).add_service(NodeServer::new(
        NodeService::new(flavor, node.clone(), agent, tasks.clone()).telling(unpublishes),
    ));

    let listener = unix::listen(&csi_socket).await?;
    tracing::info!(socket = %csi_socket.display(), node, "serving CSI");
    tasks.spawn("CSI", {
        let (metrics, shutdown) = (rpc_metrics.clone(), shutdown.clone());
        let ends_lvmd = lvmd_shutdown.drop_guard();
        async move {
            let _ends_lvmd = ends_lvmd;
            serve_kubelet(listener, csi, &metrics, shutdown).await
        }
    });
    metrics.start(registry, AccessReviews::new(client.clone()), tasks, shutdown);

    let pools = capacity.pools();
    let lvmd_returns = capacity.start(client.clone(), tasks, shutdown);
    let signals = Signals { lvmd_returns, pools, unpublished, lost };
    let reconciler = Arc::new(Reconciler::new(flavor, node, client, lvmd, now).finding_uses(uses));
    tasks.spawn("LogicalVolumes", reconciler.run(own, signals, reconcile_metrics, shutdown.clone()));

    // Last, because kubelet calls back as soon as it sees the socket
    if embedded.contains(&Embedded::Registrar) {
        let registrar = Registrar::new(flavor, &kubelet_dir, &csi_socket);
        tasks.spawn("registrar", registrar.run(rpc_metrics, shutdown.clone()));
    }
    Ok(())
}
