//! Turns lvmd's report of the disks into a part of the status of a `NodeStorage`, which stays small whatever a machine
//! has.

use topolvm_api::{DiskGroupStatus, DiskStatus, NodeStorageStatus, format_bytes};
use topolvm_proto::lvmd::{DiskGroupItem, DiskItem, DiskReport};

/// Most disks in an object: with the longest texts they take an eighth of what etcd stores.
const MOST_DISKS: usize = 128;
/// Longest text about a disk in bytes.
const LONGEST_TEXT: usize = 512;

/// Returns whether a scan of the disks has succeeded; if the last one failed, the report has the results of an earlier
/// one.
pub(crate) fn is_scan_successful(report: Option<&DiskReport>) -> bool {
    report.is_some_and(|report| report.failure.is_empty() || !report.disk_groups.is_empty())
}

/// Adds the disks to a status. If there are too many, omits those with the least to report.
pub(crate) fn with_disks(status: NodeStorageStatus, report: DiskReport) -> NodeStorageStatus {
    let DiskReport { disks, disk_groups, failure } = report;
    let mut disks: Vec<_> = disks.into_iter().map(disk).collect();
    disks.sort_by_key(rank);
    let omitted = disks.len().saturating_sub(MOST_DISKS);
    disks.truncate(MOST_DISKS);
    NodeStorageStatus {
        disks,
        omitted_disks: u32::try_from(omitted).unwrap_or(u32::MAX),
        disks_stale_reason: cut(failure),
        disk_groups: disk_groups.into_iter().map(disk_group).collect(),
        ..status
    }
}

/// Returns the place of a disk: candidates, then what a group selects and does not get, members, and all others.
fn rank(disk: &DiskStatus) -> u8 {
    match disk.state.as_str() {
        "candidate" => 0,
        "refused" => 1,
        "not-selected" => 3,
        _ => 2,
    }
}

fn disk(item: DiskItem) -> DiskStatus {
    let mut reasons = item.reasons;
    // A disk with many partitions is in use many times
    reasons.dedup();
    DiskStatus {
        path: item.path,
        stable_name: item.stable_name,
        size: Some(format_bytes(item.size_bytes)),
        model: item.model,
        serial: item.serial,
        transport: item.transport,
        rotational: item.rotational,
        disk_group: item.disk_group,
        state: item.state,
        reasons,
        message: cut(item.message),
    }
}

fn disk_group(item: DiskGroupItem) -> DiskGroupStatus {
    DiskGroupStatus {
        name: item.name,
        mode: item.mode,
        exists: item.exists,
        owned: item.is_ours,
        disks: item.disks,
        missing_disks: item.missing,
    }
}

/// Cuts a text that is too long for the object.
pub(crate) fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(LONGEST_TEXT));
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn item(path: &str, state: &str) -> DiskItem {
        DiskItem { path: path.to_owned(), state: state.to_owned(), size_bytes: 1 << 30, ..DiskItem::default() }
    }

    fn status(disks: Vec<DiskItem>) -> NodeStorageStatus {
        with_disks(NodeStorageStatus::default(), DiskReport { disks, ..DiskReport::default() })
    }

    #[test]
    fn candidates_come_first_and_a_reason_once() {
        let refused = DiskItem {
            stable_name: "/dev/disk/by-id/x".to_owned(),
            rotational: Some(true),
            disk_group: "ssd".to_owned(),
            reasons: ["in_use", "in_use", "read_only"].map(str::to_owned).into(),
            message: "in use".to_owned(),
            ..item("/dev/sda", "refused")
        };
        let published = status(vec![refused, item("/dev/sdb", "member"), item("/dev/sdc", "candidate")]);
        let expected = json!({
            "disks": [
                {"path": "/dev/sdc", "size": "1Gi", "state": "candidate"},
                {
                    "path": "/dev/sda", "stableName": "/dev/disk/by-id/x", "size": "1Gi", "rotational": true,
                    "diskGroup": "ssd", "state": "refused", "reasons": ["in_use", "read_only"], "message": "in use",
                },
                {"path": "/dev/sdb", "size": "1Gi", "state": "member"},
            ],
        });
        assert_eq!(serde_json::to_value(published).unwrap(), expected);
    }

    #[test]
    fn an_object_has_space_for_any_machine() {
        let disk = |number: usize| {
            let state = if number < 500 { "not-selected" } else { "candidate" };
            DiskItem { message: "ä".repeat(100_000), ..item(&format!("/dev/sd{number}"), state) }
        };
        let published = status((0..502).map(disk).collect());
        assert_eq!((published.disks.len(), published.omitted_disks), (MOST_DISKS, 502 - 128));
        assert_eq!(published.disks[1].path, "/dev/sd501");
        assert!(serde_json::to_string(&published).unwrap().len() < 192 << 10);
    }

    #[test]
    fn a_report_without_groups_is_one_unless_it_could_not_be_made() {
        let failed = DiskReport { failure: "no sysfs".to_owned(), ..DiskReport::default() };
        assert!(!is_scan_successful(None) && !is_scan_successful(Some(&failed)));
        assert!(is_scan_successful(Some(&DiskReport::default())));
        let stale = DiskReport { disk_groups: vec![DiskGroupItem::default()], ..failed };
        assert!(is_scan_successful(Some(&stale)));
    }
}
