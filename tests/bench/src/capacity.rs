//! Measures how soon topolvm-controller publishes free space as CSIStorageCapacity objects.

mod fresh;
mod publish;

use std::path::Path;

use anyhow::Result;
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
    Ok(TopolvmSpec { embeds_controllers: false, controller_arguments: arguments, ..TopolvmSpec::nodes(nodes)? })
}
