//! The series of each volume in the metrics of topolvm-node, see docs/metrics.md.

use std::collections::{HashMap, HashSet};

use jiff::Timestamp;
use serde::Serialize;
use topolvm_doctor::Sample;

/// Series that joins the labels of the others with the name of the LogicalVolume.
const INFO: &str = "topolvm_volume_info";

/// Usage of a volume at a time. Values that the kernel does not report are none; counters restart when the volume is
/// activated.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct VolumeUsage {
    /// Milliseconds since 1970, for rates between two answers.
    at: i64,
    /// Names of the pods that use it, with commas between them.
    pod: String,
    /// Bytes of the pool that a thin volume takes.
    thin_used: Option<f64>,
    filesystem_size: Option<f64>,
    filesystem_available: Option<f64>,
    reads: Option<f64>,
    writes: Option<f64>,
    read_bytes: Option<f64>,
    written_bytes: Option<f64>,
    read_seconds: Option<f64>,
    write_seconds: Option<f64>,
    io_now: Option<f64>,
    io_seconds: Option<f64>,
}

impl VolumeUsage {
    /// Returns the place of a series' value.
    fn field(&mut self, series: &str) -> Option<&mut Option<f64>> {
        let field = match series {
            "thin_used_bytes" => &mut self.thin_used,
            "filesystem_size_bytes" => &mut self.filesystem_size,
            "filesystem_available_bytes" => &mut self.filesystem_available,
            "reads_completed_total" => &mut self.reads,
            "writes_completed_total" => &mut self.writes,
            "read_bytes_total" => &mut self.read_bytes,
            "written_bytes_total" => &mut self.written_bytes,
            "read_time_seconds_total" => &mut self.read_seconds,
            "write_time_seconds_total" => &mut self.write_seconds,
            "io_now" => &mut self.io_now,
            "io_time_seconds_total" => &mut self.io_seconds,
            _ => return None,
        };
        Some(field)
    }
}

/// Returns the usage of each volume by the name of its LogicalVolume, from the metrics of an agent at a time.
pub(super) fn parse(text: &str, now: Timestamp) -> HashMap<String, VolumeUsage> {
    let ours = text.lines().filter(|line| line.starts_with("topolvm_volume_"));
    let ours: String = ours.flat_map(|line| [line, "\n"]).collect();
    let samples = Sample::parse_all(&ours);
    let (infos, others): (Vec<_>, Vec<_>) = samples.iter().partition(|sample| sample.name == INFO);
    // Series name the volume itself if its claim would be ambiguous
    let named: HashSet<_> = others.iter().filter_map(|sample| sample.label("volume")).collect();
    let (mut names, mut usage) = (HashMap::new(), HashMap::new());
    for info in infos {
        let name = info.label("volume").unwrap_or_default();
        if !named.contains(name) {
            names.insert(claim(info), name);
        }
        let pod = info.label("pod").unwrap_or_default().to_owned();
        usage.insert(name.to_owned(), VolumeUsage { at: now.as_millisecond(), pod, ..VolumeUsage::default() });
    }
    for sample in others.into_iter().filter(|sample| sample.value.is_finite()) {
        let series = sample.name.strip_prefix("topolvm_volume_").unwrap_or_default();
        let name = sample.label("volume").or_else(|| names.get(&claim(sample)).copied());
        let field = name.and_then(|name| usage.get_mut(name)).and_then(|usage| usage.field(series));
        if let Some(field) = field {
            *field = Some(sample.value);
        }
    }
    usage
}

/// Returns namespace and name of the claim that a series is labelled with.
fn claim(sample: &Sample) -> (&str, &str) {
    let label = |name| sample.label(name).unwrap_or_default();
    (label("namespace"), label("persistentvolumeclaim"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_belong_to_the_volume_of_their_claim_or_of_their_name() {
        let of_shop = r#"namespace="shop",persistentvolumeclaim="data",device_class="ssd",pod="db-0""#;
        let of_none = r#"namespace="",persistentvolumeclaim="",device_class="ssd",pod="""#;
        let text = format!(
            "# TYPE topolvm_volume_info gauge\n\
             topolvm_volume_info{{node=\"n1\",volume=\"pvc-1\",{of_shop}}} 1\n\
             topolvm_volume_info{{node=\"n1\",volume=\"old\",{of_none}}} 1\n\
             topolvm_volume_info{{node=\"n1\",volume=\"kept\",{of_shop}}} 1\n\
             topolvm_volume_reads_completed_total{{{of_shop},volume=\"kept\"}} 3\n\
             topolvm_volume_reads_completed_total{{{of_shop}}} 12\n\
             topolvm_volume_filesystem_size_bytes{{{of_shop}}} 1e9\n\
             topolvm_volume_thin_used_bytes{{{of_none},volume=\"old\"}} 4096\n\
             topolvm_volume_thin_used_bytes{{namespace=\"x\",persistentvolumeclaim=\"unknown\"}} 1\n\
             topolvm_volumegroup_size_bytes{{node=\"n1\"}} 7\n"
        );
        let at = Timestamp::from_second(5).unwrap();
        let usage = parse(&text, at);
        let blank = VolumeUsage { at: 5000, ..VolumeUsage::default() };
        let expected = [
            ("kept".to_owned(), VolumeUsage { pod: "db-0".to_owned(), reads: Some(3.0), ..blank.clone() }),
            ("old".to_owned(), VolumeUsage { thin_used: Some(4096.0), ..blank.clone() }),
            (
                "pvc-1".to_owned(),
                VolumeUsage { pod: "db-0".to_owned(), reads: Some(12.0), filesystem_size: Some(1e9), ..blank },
            ),
        ];
        assert_eq!(usage, HashMap::from(expected));
    }
}
