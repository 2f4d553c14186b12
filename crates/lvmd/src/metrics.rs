//! Counts and times LVM commands, and says how old the configuration is.

use std::sync::atomic::AtomicU64;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use lvm::{CommandRunner, LvmCommand, Output, RunError};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// The metrics of LVM commands.
#[derive(Clone, Debug)]
pub struct LvmMetrics {
    commands: Family<Outcome, Counter>,
    seconds: Family<Command, Histogram>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    command: String,
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Command {
    command: String,
}

impl LvmMetrics {
    /// Makes the metrics and adds them to the registry.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            commands: Family::default(),
            // 5 ms to 82 s: from a report to a discard of a large volume
            seconds: Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.005, 2.0, 15))),
        };
        registry.register("topolvm_lvm_commands", "LVM commands by name and outcome", metrics.commands.clone());
        registry.register("topolvm_lvm_command_seconds", "Time that LVM commands took", metrics.seconds.clone());
        metrics
    }
}

/// A runner that counts and times what another one does.
#[derive(Clone, Debug)]
pub struct Metered<R> {
    inner: R,
    metrics: LvmMetrics,
}

impl<R> Metered<R> {
    /// Counts what `inner` does.
    pub fn new(inner: R, metrics: LvmMetrics) -> Self {
        Self { inner, metrics }
    }
}

impl<R: CommandRunner> CommandRunner for Metered<R> {
    async fn run(&self, command: &LvmCommand) -> Result<Output, RunError> {
        let start = Instant::now();
        let result = self.inner.run(command).await;
        let name = command.name().to_owned();
        let seconds = start.elapsed().as_secs_f64();
        self.metrics.seconds.get_or_create(&Command { command: name.clone() }).observe(seconds);
        let outcome = match &result {
            Ok(Output { code: Some(0), .. }) => "ok",
            Ok(_) => "failed",
            Err(RunError::Timeout(_)) => "timeout",
            Err(RunError::Spawn { .. } | RunError::Read(_)) => "not_run",
        };
        self.metrics.commands.get_or_create(&Outcome { command: name, outcome }).inc();
        result
    }
}

/// Whether the configuration file as it is now is in use, and since when.
#[derive(Clone, Debug)]
pub(crate) struct ConfigMetrics {
    successful: Gauge,
    success_time: Gauge<f64, AtomicU64>,
    clock: fn() -> SystemTime,
}

impl ConfigMetrics {
    /// Makes the metrics and adds them to the registry. The first reading was a success.
    pub(crate) fn register(registry: &mut Registry, clock: fn() -> SystemTime) -> Self {
        let metrics = Self { successful: Gauge::default(), success_time: Gauge::default(), clock };
        registry.register(
            "topolvm_lvmd_config_last_reload_successful",
            "Whether the configuration was taken over when it was read last",
            metrics.successful.clone(),
        );
        registry.register(
            "topolvm_lvmd_config_last_reload_success_timestamp_seconds",
            "When a configuration was taken over last",
            metrics.success_time.clone(),
        );
        metrics.record(true);
        metrics
    }

    /// Notes what came of reading the configuration.
    pub(crate) fn record(&self, success: bool) {
        self.successful.set(success.into());
        if success {
            let now = (self.clock)().duration_since(UNIX_EPOCH).unwrap_or_default();
            self.success_time.set(now.as_secs_f64());
        }
    }
}
