//! Starts the servers of the extender with the configuration of the flags.

use std::path::Path;
use std::sync::Arc;

use prometheus_client::registry::Registry;
use topolvm_api::ApiFlavor;
use topolvm_runtime::listen::Listen;
use topolvm_runtime::{CancellationToken, ConfigError, LogArgs, Program, Tasks, admin};

use crate::args::Args;
use crate::config::Config;
use crate::http::router;
use crate::metrics::Metrics;

/// Connections at the same time: kube-scheduler asks about one pod after the other, and binds others meanwhile.
const MOST_CONNECTIONS: usize = 128;

/// Configuration of the program.
#[derive(Debug)]
pub struct Settings {
    flavor: ApiFlavor,
    config: Config,
    metrics_address: Listen,
}

impl Program for Args {
    const NAME: &'static str = "topolvm-scheduler";
    type Config = Settings;

    fn log(&self) -> &LogArgs {
        &self.log
    }

    fn config(self) -> Result<Settings, ConfigError> {
        let config = if self.config.is_empty() {
            Config::default()
        } else {
            Config::load(Path::new(&self.config)).map_err(|error| ConfigError::new(error.to_string()))?
        };
        Ok(Settings {
            flavor: ApiFlavor::from_use_legacy(Some(&self.use_legacy)),
            config,
            metrics_address: self.metrics_bind_address,
        })
    }

    async fn run(settings: Settings, tasks: Tasks, shutdown: CancellationToken) -> anyhow::Result<()> {
        let Settings { flavor, config, metrics_address } = settings;
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let registry = Arc::new(registry);
        let router = router(flavor, &config, metrics);
        tracing::info!(listen = %config.listen, group = %flavor, "serving kube-scheduler");
        let stopping = shutdown.clone();
        tasks.spawn("extender", async move {
            Ok(admin::serve_on(&config.listen, MOST_CONNECTIONS, router, stopping).await?)
        });
        tasks.spawn("metrics", async move { Ok(admin::serve_metrics(metrics_address, registry, shutdown).await?) });
        Ok(())
    }
}
