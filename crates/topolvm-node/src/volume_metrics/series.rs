//! The series of volumes in the text format of OpenMetrics, written as text: a node with hundreds of volumes has
//! thousands.

use linux_mount::{DiskStatistics, FilesystemUsage};
use topolvm_api::{IoLimit, VolumeIoLimits};

use super::labels::push_label;

/// Values of the series of a volume.
#[derive(Clone, Debug)]
pub(super) struct VolumeSeries {
    /// Name of the LogicalVolume.
    pub(super) volume: String,
    /// Labels, as they are written.
    pub(super) labels: String,
    /// True if the labels are those of no other volume of the node.
    pub(super) is_exported_by_claim: bool,
    pub(super) size_bytes: Option<u64>,
    pub(super) thin_used_bytes: Option<u64>,
    pub(super) filesystem: Option<FilesystemUsage>,
    pub(super) statistics: Option<DiskStatistics>,
    pub(super) io_limits: VolumeIoLimits,
}

/// A metric of a volume.
struct Metric {
    name: &'static str,
    kind: Kind,
    help: &'static str,
    value: fn(&VolumeSeries) -> Option<u64>,
}

/// Type of a metric, and the unit of its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Gauge,
    Counter,
    /// A counter of seconds whose value is in milliseconds.
    SecondsCounter,
}

const METRICS: [Metric; 21] = [
    Metric {
        name: "topolvm_volume_size_bytes",
        kind: Kind::Gauge,
        help: "Size of the volume",
        value: |volume| volume.size_bytes,
    },
    Metric {
        name: "topolvm_volume_thin_used_bytes",
        kind: Kind::Gauge,
        help: "Bytes that the thin volume uses in its pool, including shared blocks",
        value: |volume| volume.thin_used_bytes,
    },
    Metric {
        name: "topolvm_volume_filesystem_size_bytes",
        kind: Kind::Gauge,
        help: "Size of the mounted filesystem",
        value: |volume| Some(volume.filesystem?.total_bytes),
    },
    Metric {
        name: "topolvm_volume_filesystem_available_bytes",
        kind: Kind::Gauge,
        help: "Bytes available in the mounted filesystem to users other than root",
        value: |volume| Some(volume.filesystem?.available_bytes),
    },
    Metric {
        name: "topolvm_volume_reads_completed",
        kind: Kind::Counter,
        help: "Completed reads",
        value: |volume| Some(volume.statistics?.reads),
    },
    Metric {
        name: "topolvm_volume_writes_completed",
        kind: Kind::Counter,
        help: "Completed writes",
        value: |volume| Some(volume.statistics?.writes),
    },
    Metric {
        name: "topolvm_volume_read_bytes",
        kind: Kind::Counter,
        help: "Bytes read",
        value: |volume| Some(volume.statistics?.read_bytes),
    },
    Metric {
        name: "topolvm_volume_written_bytes",
        kind: Kind::Counter,
        help: "Bytes written",
        value: |volume| Some(volume.statistics?.written_bytes),
    },
    Metric {
        name: "topolvm_volume_read_time_seconds",
        kind: Kind::SecondsCounter,
        help: "Total time of all reads",
        value: |volume| Some(volume.statistics?.read_ms),
    },
    Metric {
        name: "topolvm_volume_write_time_seconds",
        kind: Kind::SecondsCounter,
        help: "Total time of all writes",
        value: |volume| Some(volume.statistics?.write_ms),
    },
    Metric {
        name: "topolvm_volume_io_now",
        kind: Kind::Gauge,
        help: "Requests in flight",
        value: |volume| Some(volume.statistics?.in_flight),
    },
    Metric {
        name: "topolvm_volume_io_time_seconds",
        kind: Kind::SecondsCounter,
        help: "Time during which at least one request was in flight",
        value: |volume| Some(volume.statistics?.io_ms),
    },
    Metric {
        name: "topolvm_volume_io_time_weighted_seconds",
        kind: Kind::SecondsCounter,
        help: "Total time of all requests in flight",
        value: |volume| Some(volume.statistics?.weighted_ms),
    },
    Metric {
        name: "topolvm_volume_io_limit_read_bytes",
        kind: Kind::Gauge,
        help: "Limit of bytes read per second that is set in the kernel",
        value: |volume| volume.io_limits.in_force.get(IoLimit::ReadBytes),
    },
    Metric {
        name: "topolvm_volume_io_limit_requested_read_bytes",
        kind: Kind::Gauge,
        help: "Limit of bytes read per second that StorageClasses and pods request",
        value: |volume| volume.io_limits.requested.get(IoLimit::ReadBytes),
    },
    Metric {
        name: "topolvm_volume_io_limit_written_bytes",
        kind: Kind::Gauge,
        help: "Limit of bytes written per second that is set in the kernel",
        value: |volume| volume.io_limits.in_force.get(IoLimit::WriteBytes),
    },
    Metric {
        name: "topolvm_volume_io_limit_requested_written_bytes",
        kind: Kind::Gauge,
        help: "Limit of bytes written per second that StorageClasses and pods request",
        value: |volume| volume.io_limits.requested.get(IoLimit::WriteBytes),
    },
    Metric {
        name: "topolvm_volume_io_limit_reads",
        kind: Kind::Gauge,
        help: "Limit of reads per second that is set in the kernel",
        value: |volume| volume.io_limits.in_force.get(IoLimit::ReadOperations),
    },
    Metric {
        name: "topolvm_volume_io_limit_requested_reads",
        kind: Kind::Gauge,
        help: "Limit of reads per second that StorageClasses and pods request",
        value: |volume| volume.io_limits.requested.get(IoLimit::ReadOperations),
    },
    Metric {
        name: "topolvm_volume_io_limit_writes",
        kind: Kind::Gauge,
        help: "Limit of writes per second that is set in the kernel",
        value: |volume| volume.io_limits.in_force.get(IoLimit::WriteOperations),
    },
    Metric {
        name: "topolvm_volume_io_limit_requested_writes",
        kind: Kind::Gauge,
        help: "Limit of writes per second that StorageClasses and pods request",
        value: |volume| volume.io_limits.requested.get(IoLimit::WriteOperations),
    },
];

/// Appends the series of all volumes, those of one metric together, as the format demands.
pub(super) fn write(page: &mut String, node: &str, volumes: &[VolumeSeries]) {
    for metric in &METRICS {
        let mut values = volumes.iter().filter_map(|volume| Some((volume, (metric.value)(volume)?))).peekable();
        if values.peek().is_none() {
            continue;
        }
        let kind = if metric.kind == Kind::Gauge { "gauge" } else { "counter" };
        push_head(page, metric.name, kind, metric.help);
        for (volume, value) in values {
            push_series(page, metric, volume, value);
        }
    }
    if !volumes.is_empty() {
        push_head(
            page,
            "topolvm_volume_info",
            "gauge",
            "1 for each volume; the labels name the node and the LogicalVolume",
        );
    }
    for volume in volumes {
        page.push_str("topolvm_volume_info{");
        push_label(page, "node", node);
        page.push(',');
        push_label(page, "volume", &volume.volume);
        for text in [",", &volume.labels, "} 1\n"] {
            page.push_str(text);
        }
    }
}

fn push_head(page: &mut String, name: &str, kind: &str, help: &str) {
    for text in ["# HELP ", name, " ", help, ".\n# TYPE ", name, " ", kind, "\n"] {
        page.push_str(text);
    }
}

fn push_series(page: &mut String, metric: &Metric, volume: &VolumeSeries, value: u64) {
    page.push_str(metric.name);
    page.push_str(if metric.kind == Kind::Gauge { "{" } else { "_total{" });
    if !volume.is_exported_by_claim {
        push_label(page, "volume", &volume.volume);
        page.push(',');
    }
    page.push_str(&volume.labels);
    let value = match metric.kind {
        Kind::Gauge | Kind::Counter => value.to_string(),
        Kind::SecondsCounter => format!("{}.{:03}", value / 1000, value % 1000),
    };
    for text in ["} ", &value, "\n"] {
        page.push_str(text);
    }
}

#[cfg(test)]
mod tests;
