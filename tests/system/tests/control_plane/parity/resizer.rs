//! The two resizers: the stock csi-resizer, and the one in topolvm-controller. Volumes are provisioned in the
//! controller with both.

use anyhow::Result;
use serde_json::Value;
use testbed::sidecars::Sidecar;
use testbed::topolvm::{CONTROLLER, TopolvmSpec};

use super::provisioner::ELECTION;
use crate::fixture::spec;

/// Flags of csi-resizer in addition to those of the testbed. Scenarios with a stopped agent wait for the timeout.
pub(super) const STOCK_RESIZER: [&str; 1] = ["--timeout=30s"];
/// Flags of topolvm-controller with the effect of all flags of csi-resizer.
const EMBEDDED: [&str; 4] = [
    "--controllers=resizer",
    "--resizer-timeout=30s",
    "--resizer-retry-interval-start=500ms",
    "--resizer-retry-interval-max=5s",
];
/// Actions of the Events of the embedded resizer.
const ACTIONS: [&str; 2] = ["Modify", "Resize"];

/// Returns the specification of a cluster without nodes and the controller for this resizer.
pub(super) fn resizer_spec(is_embedded: bool) -> Result<TopolvmSpec> {
    let arguments: &[&str] = if is_embedded { &EMBEDDED } else { &[] };
    let arguments = ELECTION.iter().chain(&["--controllers=provisioner"]).chain(arguments);
    let controller_arguments = arguments.map(|&argument| argument.to_owned()).collect();
    // With the CRDs of snapshots, which the run watches
    Ok(TopolvmSpec { controller_arguments, sidecars: vec![Sidecar::SnapshotController], ..spec(&[])? })
}

/// Returns true for Events of a resizer about claims.
pub(super) fn is_resizer(event: &Value) -> bool {
    let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let reporters = [text("/source/component"), text("/reportingComponent")];
    let is_stock = reporters.contains(&"external-resizer topolvm.io");
    let is_embedded = reporters.contains(&CONTROLLER) && ACTIONS.contains(&text("/action"));
    text("/involvedObject/kind") == "PersistentVolumeClaim" && (is_stock || is_embedded)
}
