//! Counts and times LVM commands and processes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lvm::{CommandRunner, Freeze, Host, LvmCommand, Output, RunError};
use lvmd_engine::process_count;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use topolvm_runtime::doubling_buckets;

/// The metrics of LVM commands and processes.
#[derive(Clone, Debug)]
pub struct LvmMetrics {
    /// By command and outcome.
    commands: Family<[(&'static str, String); 2], Counter>,
    seconds: Family<CommandLabel, Histogram>,
    processes: Family<CommandLabel, Counter>,
}

/// The label of the first of the commands.
type CommandLabel = [(&'static str, String); 1];

fn command_label(commands: &[LvmCommand]) -> CommandLabel {
    [("command", commands.first().map_or("", LvmCommand::name).to_owned())]
}

impl LvmMetrics {
    /// Creates the metrics and adds them to the registry.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            commands: Family::default(),
            processes: Family::default(),
            // 5 ms to 82 s: from a report to a discard of a large volume
            seconds: Family::new_with_constructor(|| Histogram::new(doubling_buckets(0.005, 15))),
        };
        registry.register(
            "topolvm_lvm_commands",
            "LVM changes and reports, by the first command and the outcome",
            metrics.commands.clone(),
        );
        registry.register(
            "topolvm_lvm_command_seconds",
            "Duration of LVM changes and reports, by the first command",
            metrics.seconds.clone(),
        );
        registry.register(
            "topolvm_lvm_processes",
            "Started LVM processes, by the first command; one LVM shell process can serve several changes",
            metrics.processes.clone(),
        );
        metrics
    }
}

/// A command runner that counts and times the commands of another one.
#[derive(Clone, Debug)]
pub struct Metered<R> {
    inner: R,
    metrics: LvmMetrics,
}

impl<R> Metered<R> {
    /// Counts the commands of `inner`.
    pub fn new(inner: R, metrics: LvmMetrics) -> Self {
        Self { inner, metrics }
    }
}

impl<R: CommandRunner> CommandRunner for Metered<R> {
    async fn run(&self, commands: &[LvmCommand]) -> Result<Output, RunError> {
        let start = Instant::now();
        let result = self.inner.run(commands).await;
        self.metrics.seconds.get_or_create(&command_label(commands)).observe(start.elapsed().as_secs_f64());
        let processes = match &result {
            Ok(output) => output.processes,
            Err(RunError::Spawn { .. }) => 0,
            Err(RunError::Timeout(_) | RunError::Read(_)) => 1,
        };
        process_count::add(processes);
        self.metrics.processes.get_or_create(&command_label(commands)).inc_by(processes.into());
        result
    }

    async fn run_program(&self, program: &'static str, args: &[String]) -> Result<Output, RunError> {
        self.inner.run_program(program, args).await
    }

    async fn freeze(&self, devices: &[String], limit: Duration) -> Result<Result<Freeze, Output>, RunError> {
        self.inner.freeze(devices, limit).await
    }

    fn record_outcome(&self, commands: &[LvmCommand], failure: Option<&lvm::Error>) {
        let outcome = match failure {
            None => "ok",
            Some(lvm::Error::Timeout { .. }) => "timeout",
            Some(lvm::Error::Run { .. }) => "not_run",
            Some(_) => "failed",
        };
        let [command] = command_label(commands);
        self.metrics.commands.get_or_create(&[command, ("outcome", outcome.to_owned())]).inc();
        self.inner.record_outcome(commands, failure);
    }

    async fn wait_for_orphans(&self, begin: impl FnOnce(usize) + Send) {
        self.inner.wait_for_orphans(begin).await;
    }
}

impl<R: Host> Host for Metered<R> {
    type Devices = R::Devices;

    fn devices(&self) -> Arc<R::Devices> {
        self.inner.devices()
    }

    fn root(&self) -> PathBuf {
        self.inner.root()
    }
}
