//! Measures how soon topolvm-controller publishes free space as CSIStorageCapacity objects.

mod fresh;
mod publish;

use std::path::Path;

use anyhow::Result;
use serde_json::json;
use testbed::cluster::Cluster;
use testbed::topolvm::TopolvmSpec;

use crate::figure::{Figure, Selector};

/// Prefixes of the names of its figures.
pub(crate) const FAMILIES: [&str; 3] = ["capacity.publish", "capacity.idle", "capacity.fresh"];

/// Namespace of the objects.
const NAMESPACE: &str = "topolvm-system";

/// Measures the selected figures.
pub(crate) fn run(directory: &Path, wanted: &Selector<'_>) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    if wanted("capacity.publish") || wanted("capacity.idle") {
        figures.extend(publish::run(&directory.join("p"))?);
    }
    if wanted("capacity.fresh") {
        figures.extend(fresh::run(&directory.join("f"))?);
    }
    Ok(figures)
}

/// Returns the specification of a cluster whose controller publishes capacity.
fn publishing(nodes: u8) -> Result<TopolvmSpec> {
    let arguments = ["--embed=capacity", &format!("--pod-namespace={NAMESPACE}")].map(str::to_owned).into();
    Ok(TopolvmSpec { sidecars: Vec::new(), controller_arguments: arguments, ..TopolvmSpec::nodes(nodes)? })
}

/// Gives the controller the permissions of the component embedded-capacity.
fn allow_patches(cluster: &Cluster) -> Result<()> {
    let verbs = ["create", "delete", "list", "patch", "watch"];
    let patch = json!([{"op": "replace", "path": "/rules/1/verbs", "value": verbs}]).to_string();
    let arguments = ["patch", "role", "topolvm-sidecars", "-n", NAMESPACE, "--type=json", "-p", &patch];
    cluster.kubectl_ok(arguments).map(drop)
}
