//! Metrics of volume groups, wiping and device classes, computed from the engine's cache.

use std::fmt;
use std::sync::{Arc, OnceLock};

use lvm::Host;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::capacity::ClassCapacity;
use crate::engine::{Engine, GroupStatus, WipeStatus};

/// The metrics of volume groups, wiping and device classes, computed when they are asked for.
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

    /// Computes the metrics from this engine from now on.
    pub fn show(&self, engine: &Engine<R>) {
        // There is one engine in a process.
        drop(self.0.set(engine.clone()));
    }
}

impl<R: Host> Collector for EngineMetrics<R> {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(engine) = self.0.get() else { return Ok(()) };
        let groups = engine.group_status();
        let of_groups = |value: fn(&GroupStatus) -> f64| {
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
        let capacity = engine.capacity();
        let of_classes = |value: ClassValue| {
            let value_of = |class: &ClassCapacity| Some((vec![("device_class", class.name.clone())], value(class)?));
            capacity.classes.iter().filter_map(value_of).collect()
        };
        let classes: [(&str, &str, ClassValue); 5] = [
            ("device_class_size_bytes", "Size of the volume group of a device class", |class| Some(float(class.size))),
            ("device_class_available_bytes", "What may still be given away in a device class", |class| {
                Some(float(class.free_bytes))
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
    let wiping = engine.wipe_status();
    let of_wiping = |value: fn(&WipeStatus) -> u64| {
        let labels = |entry: &WipeStatus| {
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
type ClassValue = fn(&ClassCapacity) -> Option<f64>;
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
