//! The program: from flags and configuration to a served socket.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Context as _;
use lvm::{Lvm, SystemRunner};
use prometheus_client::registry::Registry;
use topolvm_runtime::grpc::RpcMetrics;
use topolvm_runtime::systemd::Systemd;
use topolvm_runtime::{CancellationToken, ConfigError, LogArgs, Program, Tasks, admin, grpc, unix};

use crate::args::{Args, Command};
use crate::config::{self, Config, InvalidConfig};
use crate::device_class::DeviceClasses;
use crate::engine::Engine;
use crate::marks::Maker;
use crate::metrics::{ConfigMetrics, EngineMetrics, LvmMetrics, Metered};
use crate::reload::Reload;
use crate::{check, health, routes};

/// What the command line asks for, checked.
#[derive(Debug)]
pub enum Job {
    /// Serve.
    Serve(Box<Settings>),
    /// Ask the lvmd behind this socket whether it is well.
    Health(PathBuf),
    /// Say what a configuration means.
    Describe(Box<Config>),
}

/// Everything that the server needs.
#[derive(Debug)]
pub struct Settings {
    /// Where the configuration was read.
    file: PathBuf,
    config: Config,
    runner: SystemRunner,
    metrics_address: String,
    systemd: Systemd,
}

impl Program for Args {
    const NAME: &'static str = "lvmd";
    type Config = Job;

    fn log(&self) -> &LogArgs {
        &self.log
    }

    fn config(self) -> Result<Job, ConfigError> {
        let invalid = |error: InvalidConfig| ConfigError::new(error.to_string());
        let read = |path: &Path| config::load(path).map_err(invalid);
        match self.command {
            Some(Command::Health) => Ok(Job::Health(config::socket(&self.config).map_err(invalid)?)),
            Some(Command::CheckConfig { file }) => Ok(Job::Describe(Box::new(read(&file.unwrap_or(self.config))?))),
            None => {
                let config = read(&self.config)?;
                let prefix = lvm_command(config.lvm_command_prefix.as_deref(), &self.lvm_path)?;
                let runner = SystemRunner::new(&prefix).map_err(|error| ConfigError::new(error.to_string()))?;
                Ok(Job::Serve(Box::new(Settings {
                    file: self.config,
                    config,
                    runner,
                    metrics_address: self.metrics_bind_address,
                    systemd: Systemd::new(&self.systemd),
                })))
            }
        }
    }

    async fn run(job: Job, tasks: Tasks, shutdown: CancellationToken) -> anyhow::Result<()> {
        let answer = match job {
            Job::Serve(settings) => return serve(*settings, &tasks, &shutdown).await,
            Job::Health(socket) => health::ask(&socket).await,
            Job::Describe(config) => {
                let text = check::describe(&config);
                std::io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")
            }
        };
        // Nothing goes on after the answer.
        shutdown.cancel();
        answer
    }
}

/// The words before the LVM sub-command.
fn lvm_command(configured: Option<&[String]>, lvm_path: &str) -> Result<Vec<String>, ConfigError> {
    match (configured, lvm_path) {
        (Some(prefix), "") => Ok(prefix.to_vec()),
        (Some(_), _) => Err(ConfigError::new(
            "--lvm-path and lvm-command-prefix in the configuration file exclude each other; remove the flag",
        )),
        (None, path) => {
            let mut prefix: Vec<_> = SystemRunner::DEFAULT_PREFIX.iter().map(|word| (*word).to_owned()).collect();
            if let (false, Some(lvm)) = (path.is_empty(), prefix.last_mut()) {
                path.clone_into(lvm);
            }
            Ok(prefix)
        }
    }
}

async fn serve(settings: Settings, tasks: &Tasks, shutdown: &CancellationToken) -> anyhow::Result<()> {
    let Settings { file, config, runner, metrics_address, systemd } = settings;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    let mut registry = Registry::default();
    let rpc_metrics = RpcMetrics::register(&mut registry);
    let lvm = Lvm::new(Metered::new(runner, LvmMetrics::register(&mut registry)));
    let config_metrics = ConfigMetrics::register(&mut registry, SystemTime::now);
    let reload = Reload::new(file, config.clone(), systemd.clone(), config_metrics)?;
    let Config { socket, peers, lvm_command_prefix: _, classes, warnings: _ } = config;

    let engine = Engine::start(lvm, classes, Maker::new(&socket), tasks, shutdown.clone()).await?;
    EngineMetrics::register(&engine, &mut registry);
    let (reporter, health_service) = tonic_health::server::health_reporter();
    let routes = routes(&engine).add_service(health_service);
    let listener = unix::listen_for(&socket, peers).await.context("socket-name in the configuration file")?;
    tracing::info!(socket = %socket.display(), "listening");

    let token = shutdown.clone();
    let (works, troubles, standing) = (engine.works(), engine.troubles(), reload.standing());
    tasks.spawn("health", health::report(reporter, systemd.clone(), works, troubles, standing, token));
    let token = shutdown.clone();
    tasks.spawn("gRPC server", async move { grpc::serve(listener, routes, &rpc_metrics, token).await });
    let token = shutdown.clone();
    tasks.spawn(
        "metrics server",
        async move { admin::serve_metrics(&metrics_address, Arc::new(registry), token).await },
    );
    let reconfigure = move |classes: DeviceClasses| {
        let engine = engine.clone();
        async move { Ok(engine.reconfigure(classes).await?) }
    };
    tasks.spawn("configuration", reload.follow(reconfigure, shutdown.clone()));
    systemd.ready();
    // A process that hangs is started anew; one whose LVM does not work is not: another process would not get further
    let watchdog = systemd.watchdog(move || alive(socket.clone()), shutdown.clone());
    tasks.spawn("watchdog", watchdog);
    Ok(())
}

/// Whether this process still accepts connections and answers.
async fn alive(socket: PathBuf) -> anyhow::Result<()> {
    health::answers(&socket).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(prefix: &[&str]) -> Vec<String> {
        prefix.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn lvm_of_the_host_is_the_default() {
        assert_eq!(lvm_command(None, "").unwrap(), words(SystemRunner::DEFAULT_PREFIX));
    }

    #[test]
    fn the_flag_replaces_the_program_only() {
        let expected = words(&["/usr/bin/nsenter", "-m", "-u", "-i", "-n", "-p", "-t", "1", "/usr/sbin/lvm"]);
        assert_eq!(lvm_command(None, "/usr/sbin/lvm").unwrap(), expected);
    }

    #[test]
    fn the_setting_replaces_everything() {
        assert_eq!(lvm_command(Some(&words(&["/sbin/lvm"])), "").unwrap(), ["/sbin/lvm"]);
    }

    #[test]
    fn flag_and_setting_exclude_each_other() {
        assert!(lvm_command(Some(&words(&["/sbin/lvm"])), "/usr/sbin/lvm").is_err());
    }
}
