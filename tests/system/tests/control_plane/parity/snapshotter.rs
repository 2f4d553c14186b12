//! The two snapshotters: the stock csi-snapshotter, and the one in topolvm-controller. Volumes are provisioned in the
//! controller with both.

use anyhow::Result;
use serde_json::Value;
use testbed::sidecars::Sidecar;
use testbed::topolvm::{CONTROLLER, TopolvmSpec};

use super::provisioner::ELECTION;
use crate::fixture::spec;

/// Flags of csi-snapshotter with the effect of those that the embedded snapshotter has or implies. Scenarios with a
/// stopped agent wait for the timeout.
pub(super) const STOCK_SNAPSHOTTER: [&str; 4] = [
    "--timeout=30s",
    "--retry-interval-start=500ms",
    "--extra-create-metadata",
    "--feature-gates=CSIVolumeGroupSnapshot=true",
];
/// Flags of topolvm-controller with the embedded snapshotter.
const EMBEDDED: [&str; 3] =
    ["--controllers=snapshotter", "--snapshotter-timeout=30s", "--snapshotter-retry-interval-start=500ms"];

/// Returns the specification of a cluster without nodes, with snapshots and the controller for this snapshotter.
pub(super) fn snapshotter_spec(is_embedded: bool) -> Result<TopolvmSpec> {
    let arguments: &[&str] = if is_embedded { &EMBEDDED } else { &[] };
    let arguments = ELECTION.iter().chain(&["--controllers=provisioner"]).chain(arguments);
    let controller_arguments = arguments.map(|&argument| argument.to_owned()).collect();
    Ok(TopolvmSpec { controller_arguments, sidecars: vec![Sidecar::SnapshotController], ..spec(&[])? })
}

/// Returns true for Events of a snapshotter about contents of snapshots and of groups of them.
pub(super) fn is_snapshotter(event: &Value) -> bool {
    let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let reporters = [text("/source/component"), text("/reportingComponent")];
    let is_one = |name: &&str| name.starts_with("csi-snapshotter ") || *name == CONTROLLER;
    let is_content = matches!(text("/involvedObject/kind"), "VolumeSnapshotContent" | "VolumeGroupSnapshotContent");
    is_content && reporters.iter().any(is_one)
}
