//! Turns the report of the disks into messages, and the labels of the node into one and back.

use lvmd_config::{DiskFinding, DiskReport, GroupFinding, NodeLabels};
use topolvm_proto::lvmd as proto;

pub(super) fn disk_report(report: &DiskReport) -> proto::DiskReport {
    proto::DiskReport {
        disks: report.disks.iter().map(|finding| disk(report, finding)).collect(),
        disk_groups: report.groups.iter().map(disk_group).collect(),
        failure: report.failure.clone().unwrap_or_default(),
    }
}

pub(crate) fn node_labels(labels: &NodeLabels) -> proto::NodeLabels {
    let label = |(key, value): (&String, &String)| proto::NodeLabel { key: key.clone(), value: value.clone() };
    proto::NodeLabels { labels: labels.iter().map(label).collect() }
}

pub(crate) fn parse_node_labels(message: proto::NodeLabels) -> NodeLabels {
    message.labels.into_iter().map(|proto::NodeLabel { key, value }| (key, value)).collect()
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
        state: finding.state.keyword().to_owned(),
        reasons: finding.state.refusals().iter().map(|reason| reason.label().to_owned()).collect(),
        message: finding.describe(report.mode_of(finding)),
    }
}

fn disk_group(group: &GroupFinding) -> proto::DiskGroupItem {
    proto::DiskGroupItem {
        name: group.name.to_string(),
        mode: group.mode.keyword().to_owned(),
        exists: group.exists,
        is_ours: group.is_ours,
        disks: group.disks,
        missing: group.missing,
    }
}
