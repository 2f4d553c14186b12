//! lvmd without its socket: the engine with metrics, health and configuration reload, for the program and for
//! topolvm-node.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use block_device::SystemMachine;
use lvm::{CommandRunner as _, Host, Lvm, VgName};
use lvmd_config::Machine;
use lvmd_config::tags::InstanceId;
use lvmd_discovery::Discovery;
use lvmd_engine::{Engine, LvmReader, StartError};
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tonic::service::Routes;
use topolvm_runtime::systemd::Systemd;
use topolvm_runtime::{CancellationToken, Tasks, error_chain};

use crate::metrics::{ConfigMetrics, DiskMetrics, EngineMetrics, LvmMetrics, Metered};
use crate::reload::{Mode, Reload};
use crate::settings::Settings;
use crate::{health, routes};

/// Extension of systemd's start timeout while LVM still works for an earlier process: LVM's own timeout and the time to
/// end.
const LEFTOVER_TIMEOUT: Duration = Duration::from_mins(13);

/// The parts around an engine that may not have started yet.
#[derive(Debug)]
pub(crate) struct Daemon<R> {
    runner: Metered<R>,
    instance: PathBuf,
    reload: Reload,
    metrics: EngineMetrics<Metered<R>>,
    disk_metrics: DiskMetrics,
    systemd: Systemd,
}

impl<R: Host + Clone> Daemon<R> {
    /// Adds the metrics to the registry and begins to watch the configuration file: from now on SIGHUP does not end the
    /// process. `instance` distinguishes its volumes from those of other lvmds, see [`InstanceId::new`].
    pub(crate) fn new(
        settings: Settings<R>,
        mode: Mode,
        instance: &Path,
        systemd: Systemd,
        registry: &mut Registry,
    ) -> anyhow::Result<Self> {
        let Settings { file, config, runner } = settings;
        for warning in &config.warnings {
            tracing::warn!("{warning}");
        }
        let runner = Metered::new(runner, LvmMetrics::register(registry));
        let config_metrics = ConfigMetrics::register(registry, SystemTime::now);
        let reload = Reload::new(file, config, mode, systemd.clone(), config_metrics)?;
        let (metrics, disk_metrics) = (EngineMetrics::register(registry), DiskMetrics::register(registry));
        Ok(Self { runner, instance: instance.to_owned(), reload, metrics, disk_metrics, systemd })
    }

    /// Waits until LVM commands that an earlier process left running have ended, ten minutes at most: until then they
    /// may change volume groups.
    pub(crate) async fn wait_for_orphans(&self) {
        let begin = |commands| {
            tracing::warn!(commands, "waiting for LVM commands that an earlier lvmd left running");
            self.systemd.extend_start(LEFTOVER_TIMEOUT);
            self.systemd.status("waiting for LVM commands that an earlier lvmd left running");
        };
        self.runner.wait_for_orphans(begin).await;
    }

    /// Starts the engine. A failure leaves nothing behind, and the start can be retried.
    pub(crate) async fn start(
        &self,
        tasks: &Tasks,
        shutdown: &CancellationToken,
    ) -> Result<Engine<Metered<R>>, StartError> {
        let lvm = lvm_of_this_machine(self.runner.clone());
        if lvm.owner().is_none() {
            tracing::warn!(
                "this machine has no /etc/machine-id, so lvmd cannot detect volume groups that another machine uses; \
                 create the file with systemd-machine-id-setup"
            );
        }
        let instance = InstanceId::new(&self.instance, Machine::read(&self.runner.root()));
        Engine::start(lvm, self.reload.classes().clone(), instance, tasks, shutdown.clone()).await
    }

    /// Waits until the configuration file has other device classes, for an engine that has not started.
    pub(crate) async fn wait_for_new_classes(&mut self) {
        self.reload.wait_for_new_classes().await;
    }

    /// Starts the tasks that report the health of an engine and reload its configuration. Returns the gRPC services of
    /// the engine and of its health.
    pub(crate) fn serve_engine(
        self,
        engine: &Engine<Metered<R>>,
        tasks: &Tasks,
        shutdown: &CancellationToken,
    ) -> Routes {
        self.metrics.show(engine);
        let (reporter, health_service) = tonic_health::server::health_reporter();
        let (obstacles_sender, lvm_conf_obstacles) = watch::channel(Vec::new());
        let lvm = engine.lvm_reader();
        let groups = self.reload.classes().volume_groups();
        tasks.spawn("lvm.conf", publish_obstacles(lvm, groups, obstacles_sender, shutdown.clone()));
        let sources = health::Sources {
            lvm_works: engine.lvm_works(),
            storage_problems: engine.storage_problems(),
            lvm_conf_obstacles,
            reload: self.reload.status(),
        };
        tasks.spawn("health", health::report(reporter, self.systemd, sources, shutdown.clone()));
        let machine = SystemMachine::new(self.runner.root());
        let discovery = Discovery::new(machine, engine.lvm_reader(), engine.clone(), self.reload.disk_groups());
        self.disk_metrics.show(discovery.report());
        tasks.spawn("disk groups", discovery.run(shutdown.clone()));
        let engine_to_change = engine.clone();
        let reconfigure = async move |classes| Ok(engine_to_change.reconfigure(classes).await?);
        tasks.spawn("configuration", self.reload.run(reconfigure, shutdown.clone()));
        routes(engine).add_service(health_service).prepare()
    }
}

/// Returns the LVM of the machine on which this runner starts it.
pub(crate) fn lvm_of_this_machine<R: Host>(runner: R) -> Lvm<R> {
    let machine = Machine::read(&runner.root());
    Lvm::new(runner).owned_by(machine.and_then(|machine| machine.tag().ok()))
}

/// Reads the settings of the host's `lvm.conf` from LVM once, and publishes those that keep LVM from carrying out
/// lvmd's commands.
async fn publish_obstacles<R: Host>(
    lvm: LvmReader<R>,
    groups: Vec<VgName>,
    obstacles: watch::Sender<Vec<String>>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    match shutdown.run_until_cancelled(lvm.host_settings()).await {
        Some(Ok(settings)) => {
            let found = settings.obstacles(&groups);
            for obstacle in &found {
                tracing::error!("{obstacle}");
            }
            if !found.is_empty() {
                obstacles.send_replace(found);
            }
        }
        Some(Err(error)) => {
            let error = error_chain(&error);
            tracing::warn!(error, "cannot read the LVM settings of this host");
        }
        None => {}
    }
    shutdown.cancelled().await;
    Ok(())
}
