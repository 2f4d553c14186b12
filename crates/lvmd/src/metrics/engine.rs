//! Metrics of volume groups, wiping and device classes, computed from the engine's cache.

use std::fmt;
use std::sync::{Arc, OnceLock};

use lvm::Host;
use lvmd_config::ClassCapacity;
use lvmd_engine::{Engine, EvacuationStatus, GroupStatus, PoolStatus, WipeStatus};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

/// The metrics of volume groups, wiping and device classes, computed at each scrape.
#[derive(Debug)]
pub struct EngineMetrics<R>(Arc<OnceLock<Engine<R>>>);

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
        let labels = |group: &GroupStatus| vec![("volume_group", group.name.to_string())];
        encode_gauges(&mut encoder, &GROUP_GAUGES, &engine.group_status(), labels)?;
        let wiping = engine.wipe_status();
        encode_gauges(&mut encoder, &WIPE_GAUGES, &wiping, wipe_labels)?;
        encode_wipe_failures(&mut encoder, &wiping)?;
        encode_gauges(&mut encoder, &EVACUATION_GAUGES, &engine.evacuation_status(), evacuation_labels)?;
        encode_pools(&mut encoder, &engine.pool_status())?;
        let labels = |class: &ClassCapacity| vec![("device_class", class.name.clone())];
        encode_gauges(&mut encoder, &CLASS_GAUGES, &engine.capacity().classes, labels)
    }
}

/// A gauge of each item of a list: its name, its help text, and its value, which not every item has.
type Gauge<T> = (&'static str, &'static str, fn(&T) -> Option<f64>);
/// Names and values of the labels of an item.
type Labels = Vec<(&'static str, String)>;

const GROUP_GAUGES: [Gauge<GroupStatus>; 4] = [
    ("volume_group_age_seconds", "Time since the last successful LVM report of a volume group", |group| {
        Some(group.age.as_secs_f64())
    }),
    ("volume_group_stale", "1 while LVM cannot report a volume group", |group| {
        Some(f64::from(u8::from(group.is_stale)))
    }),
    ("volume_group_missing_physical_volumes", "Physical volumes of a volume group that LVM does not find", |group| {
        Some(float(group.missing_pvs))
    }),
    ("volume_group_pools_ignoring_discards", "Thin pools of device classes that ignore discards", |group| {
        Some(float(group.pools_ignoring_discards))
    }),
];

const WIPE_GAUGES: [Gauge<WipeStatus>; 2] = [
    ("wiping_volumes", "Removed logical volumes that are not wiped yet", |entry| Some(float(entry.volumes))),
    ("wiping_bytes", "Bytes of removed logical volumes that must be wiped before they can be reused", |entry| {
        Some(float(entry.bytes))
    }),
];

const EVACUATION_GAUGES: [Gauge<EvacuationStatus>; 2] = [
    ("evacuation_remaining_bytes", "Bytes of volumes that are still on a disk under evacuation", |disk| {
        Some(float(disk.remaining))
    }),
    ("evacuation_blocked", "1 while the evacuation of a disk is blocked", |disk| {
        Some(f64::from(u8::from(disk.is_blocked)))
    }),
];

const POOL_GAUGES: [Gauge<PoolStatus>; 1] =
    [("thin_pool_held_up", "1 while a thin pool must be created or extended and cannot be", |pool| {
        Some(f64::from(u8::from(pool.is_held_up)))
    })];

/// A counter of each pool: its name, its help text, and its value.
type PoolCounter = (&'static str, &'static str, fn(&PoolStatus) -> u64);

const POOL_COUNTERS: [PoolCounter; 2] = [
    ("thin_pool_extensions", "Number of extensions of a thin pool", |pool| pool.extensions),
    ("thin_pool_failures", "Number of failed creations and extensions of a thin pool", |pool| pool.failures),
];

const CLASS_GAUGES: [Gauge<ClassCapacity>; 7] = [
    ("device_class_size_bytes", "Size of the volume group of a device class", |class| Some(float(class.size))),
    ("device_class_available_bytes", "Bytes that can still be allocated in a device class", |class| {
        Some(float(class.free_bytes))
    }),
    (
        "device_class_refused",
        "1 while LVM refuses to create volumes in a device class regardless of its free space",
        |class| Some(f64::from(u8::from(class.refusal.is_some()))),
    ),
    ("device_class_used_spare_bytes", "Used part of the spare capacity of a thick device class", |class| {
        class.thin.is_none().then(|| float(class.used_spare))
    }),
    ("device_class_volumes", "Logical volumes in a device class", |class| Some(float(class.volumes))),
    ("device_class_thin_data_percent", "Used data space of the thin pool of a device class in percent", |class| {
        Some(class.thin.as_ref()?.data_percent)
    }),
    (
        "device_class_thin_metadata_percent",
        "Used metadata space of the thin pool of a device class in percent",
        |class| Some(class.thin.as_ref()?.metadata_percent),
    ),
];

fn encode_gauges<T>(
    encoder: &mut DescriptorEncoder<'_>,
    gauges: &[Gauge<T>],
    items: &[T],
    labels: fn(&T) -> Labels,
) -> fmt::Result {
    for (name, help, value) in gauges {
        let name = format!("topolvm_lvmd_{name}");
        let mut metric = encoder.encode_descriptor(&name, help, None, MetricType::Gauge)?;
        for (item, value) in items.iter().filter_map(|item| Some((item, value(item)?))) {
            ConstGauge::new(value).encode(metric.encode_family(&labels(item))?)?;
        }
    }
    Ok(())
}

fn encode_wipe_failures(encoder: &mut DescriptorEncoder<'_>, wiping: &[WipeStatus]) -> fmt::Result {
    let help = "Number of failed wipes of removed logical volumes";
    let mut metric = encoder.encode_descriptor("topolvm_lvmd_wipe_failures", help, None, MetricType::Counter)?;
    for entry in wiping {
        ConstCounter::new(entry.failures).encode(metric.encode_family(&wipe_labels(entry))?)?;
    }
    Ok(())
}

fn evacuation_labels(disk: &EvacuationStatus) -> Labels {
    vec![("volume_group", disk.volume_group.clone()), ("disk", disk.disk.clone())]
}

fn encode_pools(encoder: &mut DescriptorEncoder<'_>, pools: &[PoolStatus]) -> fmt::Result {
    let labels = |pool: &PoolStatus| vec![("device_class", pool.device_class.clone())];
    encode_gauges(encoder, &POOL_GAUGES, pools, labels)?;
    for (name, help, value) in POOL_COUNTERS {
        let name = format!("topolvm_lvmd_{name}");
        let mut metric = encoder.encode_descriptor(&name, help, None, MetricType::Counter)?;
        for pool in pools {
            ConstCounter::new(value(pool)).encode(metric.encode_family(&labels(pool))?)?;
        }
    }
    Ok(())
}

fn wipe_labels(entry: &WipeStatus) -> Labels {
    vec![("volume_group", entry.volume_group.to_string()), ("device_class", entry.device_class.clone())]
}

#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "Prometheus has no other numbers")]
fn float(number: u64) -> f64 {
    number as f64
}
