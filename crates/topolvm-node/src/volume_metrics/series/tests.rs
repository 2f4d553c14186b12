use topolvm_api::{IoLimits, VolumeIoLimits};

use super::super::labels::write_labels;
use super::*;

const GIB: u64 = 1 << 30;
/// Bytes that a volume may take of a page: a node with 500 volumes stays below 1 MiB.
const BUDGET: usize = (1 << 20) / 500;

fn series(claim: (&str, &str), pods: &str) -> VolumeSeries {
    VolumeSeries {
        volume: "pvc-8a9c7a62-98f1-4b53-a7f2-4a3a1d3a3c55".to_owned(),
        labels: write_labels(claim, "ssd", pods),
        is_exported_by_claim: !claim.0.is_empty(),
        size_bytes: Some(100 * GIB),
        thin_used_bytes: None,
        filesystem: Some(FilesystemUsage {
            total_bytes: 98 * GIB,
            used_bytes: GIB,
            available_bytes: 97 * GIB,
            total_inodes: 0,
            used_inodes: 0,
            free_inodes: 0,
        }),
        statistics: Some(DiskStatistics {
            reads: 12_345_678,
            read_bytes: 87_654_321_000,
            read_ms: 1_234_567,
            writes: 22_345_678,
            written_bytes: 187_654_321_000,
            write_ms: 9,
            in_flight: 3,
            io_ms: 2_234_567,
            weighted_ms: 3_234_560,
        }),
        io_limits: VolumeIoLimits::default(),
    }
}

fn page(volumes: &[VolumeSeries]) -> String {
    let mut page = String::new();
    write(&mut page, "n1", volumes);
    page
}

#[test]
fn volume_series_use_node_exporter_names_and_kubernetes_labels() {
    let mut thin = series(("shop", "data"), "");
    (thin.thin_used_bytes, thin.filesystem, thin.statistics) = (Some(7), None, None);
    let mut unknown = series(("", ""), "web-0");
    (unknown.filesystem, unknown.statistics) = (None, None);
    insta::assert_snapshot!(page(&[series(("shop", "db"), "db-0,db-1"), thin, unknown]));
    assert_eq!(page(&[]), "");
}

#[test]
fn limits_are_exported_as_requested_and_as_in_force() {
    let mut limited = series(("shop", "db"), "db-0");
    limited.io_limits.requested = IoLimits::default().with(IoLimit::WriteBytes, Some(10 << 20));
    limited.io_limits.in_force = IoLimits::default().with(IoLimit::ReadOperations, Some(500));
    let page = page(&[limited, series(("shop", "other"), "")]);
    let shown: Vec<_> = page.lines().filter(|line| line.starts_with("topolvm_volume_io_limit")).collect();
    let labels = write_labels(("shop", "db"), "ssd", "db-0");
    let expected = [
        format!("topolvm_volume_io_limit_requested_written_bytes{{{labels}}} 10485760"),
        format!("topolvm_volume_io_limit_reads{{{labels}}} 500"),
    ];
    assert_eq!(shown, expected);
}

#[test]
fn a_volume_with_realistic_names_keeps_to_its_budget() {
    let volume = series(("customer-portal", "data-postgresql-0"), "postgresql-0");
    let head = page(std::slice::from_ref(&volume)).len();
    let each = page(&[volume.clone(), volume]).len() - head;
    assert!(each <= BUDGET, "{each} bytes for each volume, and {BUDGET} would do");
}

#[test]
fn the_longest_names_cost_no_more_than_themselves() {
    let short = page(&[series(("a", "b"), "c")]).len();
    let (namespace, name) = ("n".repeat(63), "x".repeat(253));
    let long = page(&[series((&namespace, &name), &name)]).len();
    // Once in each of 13 series
    assert_eq!(long - short, 13 * (62 + 252 + 252));
}
