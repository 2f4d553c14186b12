//! The answer of `lvmd disks`: the report of the disks as a table for people and as JSON for programs.

use std::fmt::Write as _;
use std::sync::Arc;

use anyhow::Context as _;
use block_device::Machine;
use lvm::Host;
use lvmd_config::{DiskFinding, DiskGroups, DiskReport, NodeLabels};
use lvmd_engine::LvmReader;
use serde::Serialize;
use tokio::sync::watch;

use super::scan::Scanner;

/// A disk in JSON. Keys stay as they are.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DiskObject<'a> {
    path: &'a str,
    stable_name: Option<String>,
    size_bytes: u64,
    model: Option<&'a str>,
    serial: Option<&'a str>,
    transport: Option<&'a str>,
    rotational: Option<bool>,
    disk_group: Option<&'a str>,
    state: &'static str,
    reasons: Vec<ReasonObject>,
    message: String,
}

#[derive(Serialize)]
struct ReasonObject {
    reason: &'static str,
    message: String,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct GroupObject<'a> {
    name: &'a str,
    mode: &'static str,
    exists: bool,
    is_ours: bool,
    disks: u64,
    missing: u64,
    /// The labels of the nodes that it is for, as kubectl takes them; `None` for all nodes.
    node_labels: Option<String>,
    /// True if this node is one of them; `None` while its labels are not known.
    is_for_node: Option<bool>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ReportObject<'a> {
    disks: Vec<DiskObject<'a>>,
    disk_groups: Vec<GroupObject<'a>>,
}

/// Scans the disks of a machine once, and describes them and the groups: in JSON for programs, else as a table for
/// people. The labels of the node are not known without `labels`.
pub async fn describe_disks<M: Machine, R: Host>(
    machine: M,
    lvm: impl Into<LvmReader<R>>,
    groups: &DiskGroups,
    labels: Option<NodeLabels>,
    is_json: bool,
) -> anyhow::Result<String> {
    let (_, labels) = watch::channel(labels.map(Arc::new));
    let report = Scanner::new(machine, lvm, labels).report(groups).await?;
    if !is_json {
        return Ok(as_text(&report));
    }
    as_json(&report).context("cannot write the report")
}

/// Writes the report as a table, and what is wrong with groups below it.
fn as_text(report: &DiskReport) -> String {
    let mut rows = vec![["DISK", "NAME", "SIZE", "MODEL", "STATUS"].map(str::to_owned)];
    rows.extend(report.disks.iter().map(|finding| {
        let disk = &finding.disk;
        let name = disk.stable_name().unwrap_or("-").to_owned();
        let model = disk.model.clone().unwrap_or_else(|| "-".to_owned());
        [disk.path.clone(), name, readable(disk.size), model, finding.describe(report.mode_of(finding))]
    }));
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(String::len).max().unwrap_or(0);
    let widths = [0, 1, 2, 3].map(width);
    let mut text = String::new();
    for [path, name, size, model, state] in &rows {
        let [first, second, third, fourth] = widths;
        // Writing to a String cannot fail
        let _ = writeln!(text, "{path:first$}  {name:second$}  {size:>third$}  {model:fourth$}  {state}");
    }
    for group in report.groups.iter().filter(|group| group.missing > 0) {
        let _ = writeln!(text, "disk group {}: {} of its {} disks are missing", group.name, group.missing, group.disks);
    }
    for group in report.groups.iter().filter(|group| !group.nodes.is_everything()) {
        let (name, nodes) = (&group.name, &group.nodes);
        let _ = writeln!(text, "disk group {name} (nodes with the labels {nodes}) {}", group.describe_place());
    }
    if report.groups.iter().any(|group| group.is_for_node.is_none()) {
        text.push_str("the labels of this node are unknown; set them with --node-labels KEY=VALUE,KEY=VALUE\n");
    }
    text
}

/// Writes the report as JSON.
fn as_json(report: &DiskReport) -> serde_json::Result<String> {
    let disk_groups = report.groups.iter().map(|group| GroupObject {
        name: group.name.as_str(),
        mode: group.mode.keyword(),
        exists: group.exists,
        is_ours: group.is_ours,
        disks: group.disks,
        missing: group.missing,
        node_labels: Some(group.nodes.to_string()).filter(|_| !group.nodes.is_everything()),
        is_for_node: group.is_for_node,
    });
    let disks = report.disks.iter().map(|finding| disk_object(report, finding)).collect();
    let text = serde_json::to_string_pretty(&ReportObject { disks, disk_groups: disk_groups.collect() })?;
    Ok(text + "\n")
}

fn disk_object<'a>(report: &DiskReport, finding: &'a DiskFinding) -> DiskObject<'a> {
    let disk = &finding.disk;
    let reasons = finding.state.refusals().iter();
    let reasons = reasons.map(|reason| ReasonObject { reason: reason.label(), message: reason.to_string() });
    DiskObject {
        path: &disk.path,
        stable_name: disk.stable_path(),
        size_bytes: disk.size,
        model: disk.model.as_deref(),
        serial: disk.serial.as_deref(),
        transport: disk.transport,
        rotational: disk.rotational,
        disk_group: finding.group.as_ref().map(lvm::VgName::as_str),
        state: finding.state.keyword(),
        reasons: reasons.collect(),
        message: finding.describe(report.mode_of(finding)),
    }
}

/// Returns a size as people read it, such as `3.6 TiB`.
fn readable(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    let exponent = (1..=5).rev().find(|exponent| bytes >> (10 * exponent) > 0);
    let Some((exponent, unit)) = exponent.and_then(|exponent| Some((exponent, units.get(exponent - 1)?))) else {
        return format!("{bytes} B");
    };
    let tenths = (bytes >> (10 * (exponent - 1))).saturating_mul(10) >> 10;
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use lvmd_config::{GroupFinding, Mode, WantedLabel};

    use super::*;

    #[test]
    fn groups_of_some_nodes_are_printed_with_their_labels() {
        let nodes = std::iter::once("kind=fast".parse::<WantedLabel>().unwrap()).collect();
        let group = GroupFinding {
            name: "fast".parse().unwrap(),
            mode: Mode::Auto,
            nodes,
            is_for_node: None,
            exists: false,
            is_ours: false,
            disks: 0,
            missing: 0,
        };
        let report = |is_for_node, exists| {
            let group = GroupFinding { is_for_node, exists, ..group.clone() };
            DiskReport { groups: vec![group], ..DiskReport::default() }
        };
        let text = as_text(&report(None, false));
        assert!(text.contains("disk group fast (nodes with the labels kind=fast) waits for the labels"), "{text}");
        assert!(text.ends_with("set them with --node-labels KEY=VALUE,KEY=VALUE\n"), "{text}");
        assert!(
            as_text(&report(Some(true), true)).ends_with("(nodes with the labels kind=fast) applies to this node\n")
        );
        assert!(as_text(&report(Some(false), true)).ends_with("keeps its disks and gets no new disks\n"));
        let json: serde_json::Value = serde_json::from_str(&as_json(&report(Some(false), false)).unwrap()).unwrap();
        let group = &json["diskGroups"][0];
        assert_eq!((&group["nodeLabels"], &group["isForNode"]), (&"kind=fast".into(), &false.into()));
    }

    #[test]
    fn sizes_are_readable() {
        for (bytes, text) in
            [(512, "512 B"), (1 << 20, "1.0 MiB"), (4_000_787_030_016, "3.6 TiB"), (3 << 29, "1.5 GiB")]
        {
            assert_eq!(readable(bytes), text);
        }
    }
}
