//! The two provisioners: the stock csi-provisioner, and the one in topolvm-controller.

use anyhow::Result;
use serde_json::Value;
use testbed::topolvm::TopolvmSpec;

use crate::fixture::spec;

/// Flags of csi-provisioner with the effect of those that the embedded provisioner has or implies, in the place of
/// those of the test bed. A volume may take the timeout before the provisioner asks again; scenarios with a stopped
/// agent wait for it.
pub(super) const STOCK_PROVISIONER: [&str; 6] = [
    "--timeout=30s",
    "--retry-interval-start=500ms",
    "--strict-topology",
    "--extra-create-metadata",
    "--default-fstype=",
    "--enable-capacity=false",
];
/// Flags for a Lease that outlives the moment in which all scenarios start.
pub(super) const ELECTION: [&str; 3] = [
    "--leader-election-lease-duration=10s",
    "--leader-election-renew-deadline=8s",
    "--leader-election-retry-period=1s",
];
/// Flags of topolvm-controller with the embedded provisioner.
const EMBEDDED: [&str; 3] =
    ["--controllers=provisioner", "--provisioner-timeout=30s", "--provisioner-retry-interval-start=500ms"];

/// Returns the specification of a cluster without nodes, with snapshots and the controller for this provisioner.
pub(super) fn provisioner_spec(is_embedded: bool) -> Result<TopolvmSpec> {
    let arguments: &[&str] = if is_embedded { &EMBEDDED } else { &[] };
    let controller_arguments = ELECTION.iter().chain(arguments).map(|&argument| argument.to_owned()).collect();
    Ok(TopolvmSpec { controller_arguments, ..spec(&[])? }.with_snapshots())
}

/// Returns true for Events of a provisioner: csi-provisioner reports as the driver with the identity of its
/// process, and about populators as external-provisioner.
pub(super) fn is_provisioner(event: &Value) -> bool {
    let component = event.pointer("/source/component").and_then(Value::as_str).unwrap_or_default();
    let reporter = event.pointer("/reportingComponent").and_then(Value::as_str).unwrap_or_default();
    let is_one =
        |name: &str| name.starts_with("topolvm.io_") || ["external-provisioner", "topolvm-controller"].contains(&name);
    is_one(component) || is_one(reporter)
}
