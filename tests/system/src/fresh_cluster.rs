//! A cluster as an administrator has it before the installation: nodes with volume groups and images, snapshots, and no
//! product.

use std::path::Path;

use anyhow::Result;
use testbed::cluster::Cluster;
use testbed::node::Node;
use testbed::sidecars::{self, Sidecar};
use testbed::topolvm::{Topolvm, TopolvmSpec, controller_socket};

/// Starts a cluster in `directory` with the cluster and the nodes of a specification, and without the product. A failed
/// start leaves nothing behind.
pub fn up(directory: &Path, spec: &TopolvmSpec) -> Result<Topolvm> {
    let cluster = Cluster::up(directory, &spec.cluster)?;
    let nodes = complete(&cluster, spec).inspect_err(|_| drop(cluster.down(None)))?;
    Ok(Topolvm { cluster, nodes })
}

fn complete(cluster: &Cluster, spec: &TopolvmSpec) -> Result<Vec<Node>> {
    sidecars::apply_snapshot_crds(cluster)?;
    // It does not use the socket of the driver
    Sidecar::SnapshotController.start(cluster, &controller_socket(cluster))?;
    cluster.add_nodes(&spec.nodes)
}
