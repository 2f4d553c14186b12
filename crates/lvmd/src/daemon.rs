//! lvmd without a socket: the engine and all that goes with it, whoever calls its services.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use lvm::{CommandRunner as _, Host, Lvm, VgName};
use prometheus_client::registry::Registry;
use tokio::sync::watch;
use tonic::service::Routes;
use topolvm_runtime::systemd::Systemd;
use topolvm_runtime::{CancellationToken, Tasks, error_chain};

use crate::device_class::DeviceClasses;
use crate::engine::{Engine, StartError};
use crate::marks::Maker;
use crate::metrics::{ConfigMetrics, EngineMetrics, LvmMetrics, Metered};
use crate::reload::{Place, Reload};
use crate::settings::Settings;
use crate::{health, routes};

/// What the start may take longer when LVM still works for an earlier process: its deadline and the time to end.
const LEFTOVERS: Duration = Duration::from_mins(13);

/// Everything around an engine that may not run yet.
#[derive(Debug)]
pub(crate) struct Daemon<R> {
    runner: Metered<R>,
    maker: PathBuf,
    reload: Reload,
    metrics: EngineMetrics<Metered<R>>,
    systemd: Systemd,
}

impl<R: Host + Clone> Daemon<R> {
    /// Adds the metrics to the registry and begins to watch the configuration file: from now on SIGHUP does not end the process. `maker`
    /// is what tells its volumes from those of other lvmds, see [`Maker::new`].
    pub(crate) fn new(
        settings: Settings<R>,
        place: Place,
        maker: &Path,
        systemd: Systemd,
        registry: &mut Registry,
    ) -> anyhow::Result<Self> {
        let Settings { file, config, runner } = settings;
        for warning in &config.warnings {
            tracing::warn!("{warning}");
        }
        let runner = Metered::new(runner, LvmMetrics::register(registry));
        let config_metrics = ConfigMetrics::register(registry, SystemTime::now);
        let reload = Reload::new(file, config, place, systemd.clone(), config_metrics)?;
        Ok(Self { runner, maker: maker.to_owned(), reload, metrics: EngineMetrics::register(registry), systemd })
    }

    /// Waits until LVM commands that an earlier process left running have ended, ten minutes at most: until then nobody knows what there
    /// is.
    pub(crate) async fn wait_for_leftovers(&self) {
        let begin = |commands| {
            tracing::warn!(commands, "waiting for LVM commands that an earlier lvmd left running");
            self.systemd.extend_start(LEFTOVERS);
            self.systemd.status("waits for LVM commands that an earlier lvmd left running");
        };
        self.runner.wait_for_leftovers(begin).await;
    }

    /// Starts the engine. A failure leaves nothing behind, and it can be tried again.
    pub(crate) async fn start(
        &self,
        tasks: &Tasks,
        shutdown: &CancellationToken,
    ) -> Result<Engine<Metered<R>>, StartError> {
        let (lvm, maker) = (Lvm::new(self.runner.clone()), Maker::new(&self.maker));
        Engine::start(lvm, self.reload.classes().clone(), maker, tasks, shutdown.clone()).await
    }

    /// Waits until there are other device classes to start with.
    pub(crate) async fn reconfigured(&mut self) {
        self.reload.other_classes().await;
    }

    /// Looks after an engine that was started, and gives what it offers: its services and their health.
    pub(crate) fn look_after(self, engine: &Engine<Metered<R>>, tasks: &Tasks, shutdown: &CancellationToken) -> Routes {
        self.metrics.show(engine);
        let (reporter, health_service) = tonic_health::server::health_reporter();
        let (works, troubles) = (engine.works(), engine.troubles());
        let (tell, obstacles) = watch::channel(Vec::new());
        let groups = self.reload.classes().volume_groups();
        tasks.spawn("lvm.conf", tell_obstacles(Lvm::new(self.runner.clone()), groups, tell, shutdown.clone()));
        let told = health::Told { works, troubles, obstacles, standing: self.reload.standing() };
        let report = health::report(reporter, self.systemd, told, shutdown.clone());
        tasks.spawn("health", report);
        let reconfigure = {
            let engine = engine.clone();
            move |classes: DeviceClasses| {
                let engine = engine.clone();
                async move { Ok(engine.reconfigure(classes).await?) }
            }
        };
        tasks.spawn("configuration", self.reload.follow(reconfigure, shutdown.clone()));
        routes(engine).add_service(health_service).prepare()
    }
}

/// Asks once what the host's `lvm.conf` says about whether LVM does what it is told, and tells what stands in the way.
async fn tell_obstacles<R: Host>(
    lvm: Lvm<R>,
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
            tracing::warn!(error, "cannot ask LVM for the settings of this host");
        }
        None => {}
    }
    shutdown.cancelled().await;
    Ok(())
}
