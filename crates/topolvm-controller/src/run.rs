//! The process: starts its tasks and opens its sockets.

use std::sync::Arc;

use prometheus_client::registry::Registry;
use topolvm_kube::{AccessReviews, ReconcileMetrics};
use topolvm_runtime::grpc::RpcMetrics;
use topolvm_runtime::{CancellationToken, ConfigError, LogArgs, Program, RetiredArgs, Tasks, admin, grpc, unix};

use crate::leader::Election;
use crate::reconcile::Controllers;
use crate::{Args, Config, Driver, WebhookConfig, WebhookContext, Webhooks};

impl Program for Args {
    const NAME: &'static str = "topolvm-controller";
    type Config = Config;

    fn log(&self) -> &LogArgs {
        &self.log
    }

    fn retired(&self) -> Option<&RetiredArgs> {
        Some(&self.retired)
    }

    fn config(self) -> Result<Config, ConfigError> {
        self.election_timing.check()?;
        self.try_into()
    }

    async fn run(config: Config, tasks: Tasks, shutdown: CancellationToken) -> anyhow::Result<()> {
        let Config {
            csi_socket,
            metrics,
            health_probe_bind_address,
            minimums,
            snapshots,
            lease,
            controllers,
            flavor,
            webhooks,
        } = config;
        let client = topolvm_kube::client(concat!("topolvm-controller/", env!("CARGO_PKG_VERSION"))).await?;
        let mut registry = Registry::default();
        let rpc_metrics = RpcMetrics::register(&mut registry);
        let reconcile_metrics = ReconcileMetrics::register(&mut registry);
        #[expect(clippy::disallowed_methods, reason = "the process decides what time it is")]
        let now = jiff::Timestamp::now;
        let context = WebhookContext { client: client.clone(), flavor, minimums, now };
        let webhooks = serve_webhooks(webhooks, context, &mut registry, &tasks, &shutdown)?;
        let driver = Driver::start(client.clone(), flavor, minimums, now, &tasks, &shutdown);
        let driver = if snapshots { driver } else { driver.without_snapshots() };
        let identity = process_identity();
        let election =
            lease.map(|(lease, timing)| Election::new(&client, lease, identity.clone(), timing, now, &mut registry));
        run_controllers(driver.controllers(controllers, identity, reconcile_metrics), election, &tasks, &shutdown);

        let listener = unix::listen(&csi_socket).await?;
        tracing::info!(socket = %csi_socket.display(), driver = flavor.driver_name(), "serving CSI");
        let (routes, token) = (driver.routes(), shutdown.clone());
        tasks.spawn("CSI", async move { grpc::serve(listener, routes, &rpc_metrics, token).await });
        metrics.start(Arc::new(registry), AccessReviews::new(client), &tasks, &shutdown);
        let health = admin::health_router(move || {
            driver.ready().and_then(|()| webhooks.as_ref().map_or(Ok(()), Webhooks::ready))
        });
        tasks.spawn("health", async move { Ok(admin::serve(health_probe_bind_address, health, shutdown).await?) });
        Ok(())
    }
}

/// Starts the webhooks that the configuration asks for, and serves them.
fn serve_webhooks(
    config: Option<WebhookConfig>,
    context: WebhookContext,
    registry: &mut Registry,
    tasks: &Tasks,
    shutdown: &CancellationToken,
) -> anyhow::Result<Option<Webhooks>> {
    let Some(config) = config else { return Ok(None) };
    let webhooks = Webhooks::start(context, &config, registry, tasks, shutdown)?;
    webhooks.serve(config.address, tasks, shutdown);
    Ok(Some(webhooks))
}

/// Runs the controllers while this process is the leader; always where there is no leader election.
fn run_controllers(controllers: Controllers, election: Option<Election>, tasks: &Tasks, shutdown: &CancellationToken) {
    let shutdown = shutdown.clone();
    match election {
        Some(election) => {
            tasks.spawn("leader election", election.run(shutdown, move |term| controllers.clone().run(term)));
        }
        None => tasks.spawn("controllers", controllers.run(shutdown)),
    }
}

/// Returns the holder identity of this process in the Lease and in Events: the name of the pod, and a random number
/// because the pod's next process must not take itself for the leader that it was.
fn process_identity() -> String {
    let read = |path: &str| std::fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
    format!("{}_{}", read("/proc/sys/kernel/hostname"), read("/proc/sys/kernel/random/uuid"))
}
