//! The process: its sockets, its tasks, its end.

use std::sync::Arc;

use prometheus_client::registry::Registry;
use topolvm_runtime::grpc::RpcMetrics;
use topolvm_runtime::{CancellationToken, ConfigError, LogArgs, Program, Tasks, admin, grpc, kubernetes, unix};

use crate::reconcile::ResizeNudge;
use crate::{Args, Config, Driver};

impl Program for Args {
    const NAME: &'static str = "topolvm-controller";
    type Config = Config;

    fn log(&self) -> &LogArgs {
        &self.log
    }

    fn config(self) -> Result<Config, ConfigError> {
        Ok(self.into())
    }

    async fn run(config: Config, tasks: Tasks, shutdown: CancellationToken) -> anyhow::Result<()> {
        let Config { csi_socket, metrics_bind_address, health_probe_bind_address, minimums, snapshots, flavor } =
            config;
        let client = kubernetes::client(concat!("topolvm-controller/", env!("CARGO_PKG_VERSION"))).await?;
        let mut registry = Registry::default();
        let rpc_metrics = RpcMetrics::register(&mut registry);
        let registry = Arc::new(registry);

        #[expect(clippy::disallowed_methods, reason = "the process decides what time it is")]
        let now = jiff::Timestamp::now;
        let driver = Driver::start(client.clone(), flavor, minimums, now, &tasks, &shutdown);
        let driver = if snapshots { driver } else { driver.without_snapshots() };
        tasks.spawn("resize nudge", ResizeNudge { client, flavor, now }.run(shutdown.clone()));

        let listener = unix::listen(&csi_socket).await?;
        tracing::info!(socket = %csi_socket.display(), driver = flavor.driver_name(), "serving CSI");
        let (routes, token) = (driver.routes(), shutdown.clone());
        tasks.spawn("CSI", async move { grpc::serve(listener, routes, &rpc_metrics, token).await });
        let token = shutdown.clone();
        tasks.spawn("metrics", async move { admin::serve_metrics(&metrics_bind_address, registry, token).await });
        let health = admin::health_router(move || driver.ready());
        tasks.spawn("health", async move { admin::serve(&health_probe_bind_address, health, shutdown).await });
        // Webhooks, leader election and the finalizer controllers are further tasks, started here
        Ok(())
    }
}
