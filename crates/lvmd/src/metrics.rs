//! Counts and times LVM processes, and tells what the engine knows and how old the configuration is.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{fmt, io};

use lvm::{
    CommandRunner, Device, DeviceStatus, Devices, GroupLock, Host, LogicalVolume, LvmCommand, Output, PhysicalVolume,
    RunError, Version, VgName, VolumeGroup, Wipeable,
};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use topolvm_runtime::doubling_buckets;

use crate::engine::{Engine, Knowledge, Wiping};
use crate::operation;
use crate::usage::ClassUsage;

/// The metrics of LVM commands.
#[derive(Clone, Debug)]
pub struct LvmMetrics {
    commands: Family<Outcome, Counter>,
    seconds: Family<Command, Histogram>,
    processes: Family<Command, Counter>,
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
            processes: Family::default(),
            // 5 ms to 82 s: from a report to a discard of a large volume
            seconds: Family::new_with_constructor(|| Histogram::new(doubling_buckets(0.005, 15))),
        };
        registry.register(
            "topolvm_lvm_commands",
            "Changes and reports that LVM was asked for, by the first command and the outcome",
            metrics.commands.clone(),
        );
        registry.register(
            "topolvm_lvm_command_seconds",
            "Time that they took, by the first command",
            metrics.seconds.clone(),
        );
        registry.register(
            "topolvm_lvm_processes",
            "LVM processes that were started, by the first command; a shell of LVM that waits for more serves several changes",
            metrics.processes.clone(),
        );
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
    async fn run(&self, commands: &[LvmCommand]) -> Result<Output, RunError> {
        let start = Instant::now();
        let result = self.inner.run(commands).await;
        let name = commands.first().map_or("", LvmCommand::name).to_owned();
        let seconds = start.elapsed().as_secs_f64();
        self.metrics.seconds.get_or_create(&Command { command: name.clone() }).observe(seconds);
        let processes = match &result {
            Ok(output) => output.processes,
            Err(RunError::Spawn { .. }) => 0,
            Err(RunError::Timeout(_) | RunError::Read(_)) => 1,
        };
        operation::count_processes(processes);
        self.metrics.processes.get_or_create(&Command { command: name }).inc_by(processes.into());
        result
    }

    async fn run_program(&self, program: &'static str, args: &[String]) -> Result<Output, RunError> {
        self.inner.run_program(program, args).await
    }

    fn judged(&self, commands: &[LvmCommand], failure: Option<&lvm::Error>) {
        let outcome = match failure {
            None => "ok",
            Some(lvm::Error::Timeout { .. }) => "timeout",
            Some(lvm::Error::Run { .. }) => "not_run",
            Some(_) => "failed",
        };
        let command = commands.first().map_or("", LvmCommand::name).to_owned();
        self.metrics.commands.get_or_create(&Outcome { command, outcome }).inc();
        self.inner.judged(commands, failure);
    }

    async fn wait_for_leftovers(&self, begin: impl FnOnce(usize) + Send) {
        self.inner.wait_for_leftovers(begin).await;
    }
}

impl<R: Devices> Devices for Metered<R> {
    fn version(&self, pv: &PhysicalVolume) -> io::Result<Option<Version>> {
        self.inner.version(pv)
    }

    fn status(&self, vg: &VolumeGroup, volume: &LogicalVolume) -> io::Result<Option<DeviceStatus>> {
        self.inner.status(vg, volume)
    }

    fn mapped(&self) -> io::Result<HashMap<String, Device>> {
        self.inner.mapped()
    }

    fn population(&self) -> io::Result<String> {
        self.inner.population()
    }

    fn hold(&self, vg: &VgName, volume: &LogicalVolume) -> io::Result<Box<dyn Wipeable>> {
        self.inner.hold(vg, volume)
    }

    fn lock_group(&self, directory: &Path, vg: &VgName, patience: Duration) -> io::Result<GroupLock> {
        self.inner.lock_group(directory, vg, patience)
    }
}

/// What the engine knows of volume groups and device classes, told when somebody asks for metrics. Clones show the same engine.
pub struct EngineMetrics<R>(Arc<OnceLock<Engine<R>>>);

impl<R> fmt::Debug for EngineMetrics<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("EngineMetrics").finish_non_exhaustive()
    }
}

impl<R: Host> EngineMetrics<R> {
    /// Adds the metrics of an engine to the registry. They are empty until there is one.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self(Arc::default());
        registry.register_collector(Box::new(Self(Arc::clone(&metrics.0))));
        metrics
    }

    /// Shows this engine.
    pub fn show(&self, engine: &Engine<R>) {
        // There is one engine in a process; a second would be as good
        drop(self.0.set(engine.clone()));
    }
}

impl<R: Host> Collector for EngineMetrics<R> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(engine) = self.0.get() else { return Ok(()) };
        let groups = engine.knowledge();
        let of_groups = |value: fn(&Knowledge) -> f64| {
            groups.iter().map(move |group| (vec![("volume_group", group.name.to_string())], value(group))).collect()
        };
        gauge(
            &mut encoder,
            "volume_group_age_seconds",
            "Time since LVM was last asked about a volume group",
            of_groups(|group| group.age.as_secs_f64()),
        )?;
        gauge(
            &mut encoder,
            "volume_group_stale",
            "1 while LVM cannot be asked about a volume group",
            of_groups(|group| f64::from(u8::from(group.is_stale))),
        )?;
        gauge(
            &mut encoder,
            "volume_group_missing_physical_volumes",
            "Physical volumes of a volume group that LVM does not find",
            of_groups(|group| float(group.missing_pvs)),
        )?;
        encode_wiping(engine, &mut encoder)?;
        let usage = engine.usage();
        let of_classes = |value: ClassValue| {
            let value_of = |class: &ClassUsage| Some((vec![("device_class", class.name.clone())], value(class)?));
            usage.classes.iter().filter_map(value_of).collect()
        };
        let classes: [(&str, &str, ClassValue); 5] = [
            ("device_class_size_bytes", "Size of the volume group of a device class", |class| Some(float(class.size))),
            ("device_class_available_bytes", "What may still be given away in a device class", |class| {
                Some(float(class.free))
            }),
            ("device_class_volumes", "Logical volumes in a device class", |class| Some(float(class.volumes))),
            ("device_class_thin_data_percent", "How full the thin pool of a device class is", |class| {
                Some(class.thin.as_ref()?.data_percent)
            }),
            (
                "device_class_thin_metadata_percent",
                "How full the metadata of the thin pool of a device class is",
                |class| Some(class.thin.as_ref()?.metadata_percent),
            ),
        ];
        for (name, help, value) in classes {
            gauge(&mut encoder, name, help, of_classes(value))?;
        }
        Ok(())
    }
}

fn encode_wiping<R: Host>(engine: &Engine<R>, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let wiping = engine.wiping();
    let of_wiping = |value: fn(&Wiping) -> u64| {
        let labels = |entry: &Wiping| {
            vec![("volume_group", entry.volume_group.to_string()), ("device_class", entry.device_class.clone())]
        };
        wiping.iter().map(|entry| (labels(entry), value(entry))).collect::<Vec<_>>()
    };
    let floats = |values: Vec<(_, u64)>| values.into_iter().map(|(labels, value)| (labels, float(value))).collect();
    gauge(
        encoder,
        "wiping_volumes",
        "Removed logical volumes that are not wiped yet",
        floats(of_wiping(|entry| entry.volumes)),
    )?;
    gauge(
        encoder,
        "wiping_bytes",
        "What is still to be wiped before it can be given away",
        floats(of_wiping(|entry| entry.bytes)),
    )?;
    let help = "How often a removed logical volume could not be wiped";
    let mut metric = encoder.encode_descriptor("topolvm_lvmd_wipe_failures", help, None, MetricType::Counter)?;
    for (labels, failures) in of_wiping(|entry| entry.failures) {
        ConstCounter::new(failures).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

/// Reads a value that not every class has.
type ClassValue = fn(&ClassUsage) -> Option<f64>;
/// Values with the labels of each.
type Values = Vec<(Vec<(&'static str, String)>, f64)>;

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, values: Values) -> fmt::Result {
    let name = format!("topolvm_lvmd_{name}");
    let mut metric = encoder.encode_descriptor(&name, help, None, MetricType::Gauge)?;
    for (labels, value) in values {
        ConstGauge::new(value).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "Prometheus has no other numbers")]
fn float(number: u64) -> f64 {
    number as f64
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
