//! Metrics of reloading the configuration file.

use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The metrics of reloading the configuration file.
#[derive(Clone, Debug)]
pub(crate) struct ConfigMetrics {
    successful: Gauge,
    success_time: Gauge<f64, AtomicU64>,
    clock: fn() -> SystemTime,
}

impl ConfigMetrics {
    /// Creates the metrics and adds them to the registry. The configuration of the start counts as a success.
    pub(crate) fn register(registry: &mut Registry, clock: fn() -> SystemTime) -> Self {
        let metrics = Self { successful: Gauge::default(), success_time: Gauge::default(), clock };
        registry.register(
            "topolvm_lvmd_config_last_reload_successful",
            "Whether the last configuration reload was successful",
            metrics.successful.clone(),
        );
        registry.register(
            "topolvm_lvmd_config_last_reload_success_timestamp_seconds",
            "Time of the last successful configuration reload",
            metrics.success_time.clone(),
        );
        metrics.record(true);
        metrics
    }

    /// Records whether a reload succeeded.
    pub(crate) fn record(&self, success: bool) {
        self.successful.set(success.into());
        if success {
            let now = (self.clock)().duration_since(UNIX_EPOCH).unwrap_or_default();
            self.success_time.set(now.as_secs_f64());
        }
    }
}
