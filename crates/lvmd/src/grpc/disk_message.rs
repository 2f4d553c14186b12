//! Turns the report of the disks into messages.

use topolvm_proto::lvmd as proto;

use crate::disk_report::{DiskFinding, DiskReport, GroupFinding};

pub(super) fn disk_report(report: &DiskReport) -> proto::DiskReport {
    proto::DiskReport {
        disks: report.disks.iter().map(|finding| disk(report, finding)).collect(),
        disk_groups: report.groups.iter().map(disk_group).collect(),
        failure: report.failure.clone().unwrap_or_default(),
    }
}

fn disk(report: &DiskReport, finding: &DiskFinding) -> proto::DiskItem {
    let disk = &finding.disk;
    proto::DiskItem {
        path: disk.path.clone(),
        stable_name: disk.stable_path().unwrap_or_default(),
        size_bytes: disk.size,
        model: disk.model.clone().unwrap_or_default(),
        serial: disk.serial.clone().unwrap_or_default(),
        transport: disk.transport.unwrap_or_default().to_owned(),
        rotational: disk.rotational,
        disk_group: finding.group.as_ref().map(ToString::to_string).unwrap_or_default(),
        verdict: finding.verdict.word().to_owned(),
        reasons: finding.verdict.refusals().iter().map(|reason| reason.label().to_owned()).collect(),
        message: finding.describe(report.mode_of(finding)),
    }
}

fn disk_group(group: &GroupFinding) -> proto::DiskGroupItem {
    proto::DiskGroupItem {
        name: group.name.to_string(),
        mode: group.mode.word().to_owned(),
        exists: group.exists,
        is_ours: group.is_ours,
        disks: group.disks,
        missing: group.missing,
    }
}
