//! The program: from flags and configuration to a served socket.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use block_device::SystemMachine;
use lvm::Host as _;
use lvmd_config::{Config, InvalidConfig, NodeLabels};
use lvmd_discovery::describe_disks;
use prometheus_client::registry::Registry;
use topolvm_proto::lvmd::Empty;
use topolvm_proto::lvmd::disk_service_client::DiskServiceClient;
use topolvm_runtime::grpc::RpcMetrics;
use topolvm_runtime::listen::Listen;
use topolvm_runtime::systemd::Systemd;
use topolvm_runtime::{CancellationToken, ConfigError, LogArgs, Program, RetiredArgs, Tasks, admin, grpc, unix};

use crate::args::{Args, Command, DiskOutput};
use crate::daemon::{Daemon, lvm_of_this_machine};
use crate::grpc::disk_message;
use crate::reload::Mode;
use crate::settings::Settings;
use crate::{check_config, convert_config, health};

/// Advice where metrics cannot be served.
const METRICS_ADVICE: &str =
    "cannot serve metrics; set a free port with --metrics-bind-address, or disable metrics with 0";
/// Advice where probes cannot be answered.
const HEALTH_ADVICE: &str =
    "cannot serve health probes; set a free port with --health-probe-bind-address, or disable them with 0";
/// The command to run, with its checked arguments.
#[derive(Debug)]
pub enum Job {
    /// Serve.
    Serve(Box<Server>),
    /// Ask the lvmd behind this socket for its health.
    Health(PathBuf),
    /// Describe a configuration.
    CheckConfig(Box<Config>),
    /// Print a configuration that was converted.
    Print(String),
    /// Report the disks of this machine.
    Disks {
        /// The configuration and LVM.
        settings: Box<Settings>,
        /// True for JSON, false for a table.
        as_json: bool,
        /// The labels of this node, if they were given.
        labels: Option<NodeLabels>,
    },
}

/// The checked arguments of the server.
#[derive(Debug)]
pub struct Server {
    settings: Settings,
    metrics_address: Listen,
    health_address: Listen,
    systemd: Systemd,
}

impl Program for Args {
    const NAME: &'static str = "lvmd";
    type Config = Job;

    fn log(&self) -> &LogArgs {
        &self.log
    }

    fn retired(&self) -> Option<&RetiredArgs> {
        Some(&self.retired)
    }

    fn config(self) -> Result<Job, ConfigError> {
        let invalid = |error: InvalidConfig| ConfigError::new(error.to_string());
        let read = |path: &Path| lvmd_config::load(path).map_err(invalid);
        match self.command {
            Some(Command::Health) => Ok(Job::Health(lvmd_config::load_socket(&self.config).map_err(invalid)?)),
            Some(Command::CheckConfig { file }) => Ok(Job::CheckConfig(Box::new(read(&file.unwrap_or(self.config))?))),
            Some(Command::ConvertConfig { file }) => {
                let name = file.display().to_string();
                let failed = |why: String| ConfigError::new(format!("{name}: {why}"));
                let text = std::fs::read_to_string(&file).map_err(|error| failed(error.to_string()))?;
                Ok(Job::Print(convert_config::convert(&text).map_err(|error| failed(error.to_string()))?))
            }
            Some(Command::Disks { output, node_labels: labels }) => {
                let settings = Box::new(Settings::read(self.config, &self.lvm_path)?);
                Ok(Job::Disks { settings, as_json: output == DiskOutput::Json, labels })
            }
            None => Ok(Job::Serve(Box::new(Server {
                settings: Settings::read(self.config, &self.lvm_path)?,
                metrics_address: self.metrics_bind_address,
                health_address: self.health_probe_bind_address,
                systemd: Systemd::new(&self.systemd),
            }))),
        }
    }

    async fn run(job: Job, tasks: Tasks, shutdown: CancellationToken) -> anyhow::Result<()> {
        let print =
            |text: String| std::io::stdout().write_all(text.as_bytes()).context("cannot write to standard output");
        let answer = match job {
            Job::Serve(server) => return serve(*server, &tasks, &shutdown).await,
            Job::Health(socket) => health::check_health(&socket).await,
            Job::CheckConfig(config) => print(check_config::describe(&config)),
            Job::Print(text) => print(text),
            Job::Disks { settings, as_json, labels } => scan_disks(*settings, as_json, labels).await.and_then(print),
        };
        // Nothing goes on after the answer.
        shutdown.cancel();
        answer
    }
}

/// Scans the disks once, and returns the text or JSON that describes them.
async fn scan_disks(settings: Settings, as_json: bool, labels: Option<NodeLabels>) -> anyhow::Result<String> {
    let Settings { config, runner, .. } = settings;
    let needs_labels = config.disk_groups.groups.iter().any(|group| !group.node_labels.is_everything());
    let labels = if labels.is_none() && needs_labels { ask_for_labels(&config.socket).await } else { labels };
    let root = runner.root();
    let lvm = lvm_of_this_machine(runner);
    config.classes.volume_groups().iter().for_each(|vg| lvm.serve(vg, None));
    describe_disks(SystemMachine::new(root), lvm, &config.disk_groups, labels, as_json).await
}

/// Returns the labels that the lvmd behind a socket received for its node. They can be missing or outdated.
async fn ask_for_labels(socket: &Path) -> Option<NodeLabels> {
    let mut lvmd = DiskServiceClient::new(health::connect(socket).await.ok()?);
    let answer = lvmd.get_node_labels(Empty {}).await.ok()?.into_inner();
    answer.node_labels.map(disk_message::parse_node_labels)
}

async fn serve(server: Server, tasks: &Tasks, shutdown: &CancellationToken) -> anyhow::Result<()> {
    let Server { settings, metrics_address, health_address, systemd } = server;
    let (socket, peers) = (settings.config.socket.clone(), settings.config.peers.clone());
    let mut registry = Registry::default();
    let rpc_metrics = RpcMetrics::register(&mut registry);
    // Also while another lvmd serves the socket: with `maxSurge` that one ends when this pod is ready
    let probed = socket.clone();
    let readiness = admin::health_router(move || {
        let socket = probed.clone();
        async move { health::check_lvm(&socket).await.map(drop).map_err(|error| format!("{error:#}")) }
    });
    tasks.spawn("health probes", admin::keep_serving(health_address, readiness, HEALTH_ADVICE, shutdown.clone()));
    // Two of the same socket would take each other's unfinished volumes for their own
    if !unix::wait_until_free(&socket, shutdown).await {
        return Ok(());
    }
    let daemon = Daemon::new(settings, Mode::Standalone, &socket, systemd.clone(), &mut registry)?;
    daemon.wait_for_orphans().await;
    let engine = daemon.start(tasks, shutdown).await?;
    let listener = unix::listen_for(&socket, peers).await.context("socket-name in the configuration file")?;
    tracing::info!(socket = %socket.display(), "listening");

    let routes = daemon.serve_engine(&engine, tasks, shutdown);
    let token = shutdown.clone();
    tasks.spawn("gRPC server", async move { grpc::serve(listener, routes, &rpc_metrics, token).await });
    let metrics = admin::metrics_router(Arc::new(registry));
    tasks.spawn("metrics server", admin::keep_serving(metrics_address, metrics, METRICS_ADVICE, shutdown.clone()));
    systemd.ready();
    // systemd restarts a process that hangs, and not one whose LVM does not work: another process would not get
    // further.
    let ping = move || {
        let socket = socket.clone();
        async move { health::ping(&socket).await }
    };
    let watchdog = systemd.watchdog(ping, shutdown.clone());
    tasks.spawn("watchdog", watchdog);
    Ok(())
}
