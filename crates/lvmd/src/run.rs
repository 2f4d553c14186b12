//! The program: from flags and configuration to a served socket.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use prometheus_client::registry::Registry;
use topolvm_runtime::grpc::RpcMetrics;
use topolvm_runtime::listen::Listen;
use topolvm_runtime::systemd::Systemd;
use topolvm_runtime::{CancellationToken, ConfigError, LogArgs, Program, RetiredArgs, Tasks, admin, grpc, unix};

use crate::args::{Args, Command};
use crate::config::{self, Config, InvalidConfig};
use crate::daemon::Daemon;
use crate::reload::Mode;
use crate::settings::Settings;
use crate::{check_config, health};

/// The command to run, with its checked arguments.
#[derive(Debug)]
pub enum Job {
    /// Serve.
    Serve(Box<Server>),
    /// Ask the lvmd behind this socket for its health.
    Health(PathBuf),
    /// Describe a configuration.
    CheckConfig(Box<Config>),
}

/// The checked arguments of the server.
#[derive(Debug)]
pub struct Server {
    settings: Settings,
    metrics_address: Listen,
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
        let read = |path: &Path| config::load(path).map_err(invalid);
        match self.command {
            Some(Command::Health) => Ok(Job::Health(config::load_socket(&self.config).map_err(invalid)?)),
            Some(Command::CheckConfig { file }) => Ok(Job::CheckConfig(Box::new(read(&file.unwrap_or(self.config))?))),
            None => Ok(Job::Serve(Box::new(Server {
                settings: Settings::read(self.config, &self.lvm_path)?,
                metrics_address: self.metrics_bind_address,
                systemd: Systemd::new(&self.systemd),
            }))),
        }
    }

    async fn run(job: Job, tasks: Tasks, shutdown: CancellationToken) -> anyhow::Result<()> {
        let answer = match job {
            Job::Serve(server) => return serve(*server, &tasks, &shutdown).await,
            Job::Health(socket) => health::check_health(&socket).await,
            Job::CheckConfig(config) => {
                let text = check_config::describe(&config);
                std::io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")
            }
        };
        // Nothing goes on after the answer.
        shutdown.cancel();
        answer
    }
}

async fn serve(server: Server, tasks: &Tasks, shutdown: &CancellationToken) -> anyhow::Result<()> {
    let Server { settings, metrics_address, systemd } = server;
    let (socket, peers) = (settings.config.socket.clone(), settings.config.peers.clone());
    let mut registry = Registry::default();
    let rpc_metrics = RpcMetrics::register(&mut registry);
    let daemon = Daemon::new(settings, Mode::Standalone, &socket, systemd.clone(), &mut registry)?;
    daemon.wait_for_orphans().await;
    let engine = daemon.start(tasks, shutdown).await?;
    let listener = unix::listen_for(&socket, peers).await.context("socket-name in the configuration file")?;
    tracing::info!(socket = %socket.display(), "listening");

    let routes = daemon.serve_engine(&engine, tasks, shutdown);
    let token = shutdown.clone();
    tasks.spawn("gRPC server", async move { grpc::serve(listener, routes, &rpc_metrics, token).await });
    let token = shutdown.clone();
    tasks.spawn("metrics server", async move {
        Ok(admin::serve_metrics(metrics_address, Arc::new(registry), token).await?)
    });
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
