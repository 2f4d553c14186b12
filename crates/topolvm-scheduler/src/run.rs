//! Starts the servers of the extender with the configuration of the flags.

use std::path::Path;
use std::sync::Arc;

use prometheus_client::registry::Registry;
use topolvm_api::ApiFlavor;
use topolvm_runtime::http_server::Limit;
use topolvm_runtime::listen::Listen;
use topolvm_runtime::{CancellationToken, ConfigError, LogArgs, Program, Tasks, admin};

use crate::args::Args;
use crate::config::Config;
use crate::http::{Watches, router};
use crate::metrics::Metrics;
use crate::node_cache::NodeCache;
use crate::reservations::Reservations;
use crate::tls;

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
        let tls = config.tls.clone().map(|files| tls::start(files, &mut registry, &tasks, &shutdown)).transpose()?;
        let registry = Arc::new(registry);
        let watches = start_watches(flavor, &config, &tasks, &shutdown).await?;
        let router = router(flavor, &config, watches, metrics);
        tracing::info!(listen = %config.listen, group = %flavor, "serving kube-scheduler");
        let stopping = shutdown.clone();
        tasks.spawn("extender", async move {
            match tls {
                Some(tls) => {
                    let limit = Limit::of(MOST_CONNECTIONS);
                    tls.serve(config.listen.listen().await?, limit, router, stopping).await;
                }
                None => admin::serve_on(&config.listen, MOST_CONNECTIONS, router, stopping).await?,
            }
            Ok(())
        });
        tasks.spawn("metrics", async move { Ok(admin::serve_metrics(metrics_address, registry, shutdown).await?) });
        Ok(())
    }
}

/// Starts the watches that the configuration asks for.
async fn start_watches(
    flavor: ApiFlavor,
    config: &Config,
    tasks: &Tasks,
    shutdown: &CancellationToken,
) -> anyhow::Result<Watches> {
    let mut watches = Watches::default();
    if !config.node_cache && !config.reservations {
        return Ok(watches);
    }
    let (client, credentials) = topolvm_kube::client(concat!("topolvm-scheduler/", env!("CARGO_PKG_VERSION"))).await?;
    tasks.spawn("credentials", credentials.clone().run(shutdown.clone()));
    watches.credentials = Some(credentials);
    if config.node_cache {
        let (nodes, task) = NodeCache::watch(client.clone(), flavor, shutdown.clone());
        tasks.spawn("watch of Nodes", task);
        watches.nodes = Some(nodes);
    }
    if config.reservations {
        #[expect(clippy::disallowed_methods, reason = "the process decides what time it is")]
        let now = jiff::Timestamp::now;
        watches.reservations = Some(Reservations::start(&client, flavor, now, tasks, shutdown));
    }
    Ok(watches)
}
