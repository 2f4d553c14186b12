//! The product on a cluster: the programs that cargo built, where a deployment would have them.
//!
//! topolvm-controller and the sidecars run on this machine inside the cluster's namespace, lvmd and topolvm-node in the
//! nodes, which see this machine's files. Each has the rights of its ServiceAccount and no more.

mod controller;
mod kustomization;
mod node_programs;
mod spec;

use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow, bail};

use crate::cluster::Cluster;
use crate::node::Node;
use crate::sidecars::{self, Sidecar};

pub use self::controller::{
    CONTROLLER, EMBEDDED, controller_command, controller_kubeconfig, controller_socket, is_leading, start_controller,
};
pub use self::kustomization::{account_token, apply_without_workloads, manifests, roll_out};
pub use self::node_programs::{
    LVMD, LVMD_SOCKET, NODE, node_socket, start_agent, start_node_programs, stop_node_programs, wait_for_driver,
};
pub use self::spec::{RAID_CLASSES, THIN_CLASS, THIN_OVERPROVISION, THIN_POOL, THIN_VG, TopolvmSpec};

use self::kustomization::write_account_kubeconfig;
use self::node_programs::run_node_script;

/// Time that the controller has to end after TERM.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// A cluster with the product. Dropping it changes nothing; [`Cluster::down`] ends it.
#[derive(Debug)]
pub struct Topolvm {
    /// The cluster.
    pub cluster: Cluster,
    /// The nodes in the order of their specifications.
    pub nodes: Vec<Node>,
}

/// Starts a standard cluster with the product on this number of nodes, ready for claims. A start that fails leaves
/// nothing behind.
pub fn up(directory: &Path, nodes: u8) -> Result<Topolvm> {
    up_with(directory, &TopolvmSpec::nodes(nodes)?)
}

/// Starts a cluster with the product of this specification, ready for claims. A start that fails leaves nothing behind.
pub fn up_with(directory: &Path, spec: &TopolvmSpec) -> Result<Topolvm> {
    for program in [CONTROLLER, NODE, LVMD] {
        let path = spec.programs.join(program);
        if !path.is_file() {
            bail!("no {}: run cargo build --workspace first", path.display());
        }
    }
    let cluster = Cluster::up(directory, &spec.cluster)?;
    install(&cluster, spec)
        .inspect_err(|_| drop(cluster.down(None)))
        .map(|nodes| Topolvm { cluster: cluster.clone(), nodes })
}

/// Installs the product on a cluster without nodes, adds the nodes, and waits until claims can be created.
fn install(cluster: &Cluster, spec: &TopolvmSpec) -> Result<Vec<Node>> {
    // The nodes boot while the other programs start.
    thread::scope(|scope| {
        let nodes = scope.spawn(|| cluster.add_nodes(&spec.nodes));
        let rest = install_controller(cluster, spec);
        let nodes = nodes.join().map_err(|_| anyhow!("a thread panicked"))?;
        rest?;
        let nodes = nodes?;
        if spec.in_pods {
            start_pods(cluster, &nodes, spec)?;
        } else {
            for node in &nodes {
                start_node_programs(cluster, node, spec)?;
            }
        }
        for node in &nodes {
            wait_for_driver(cluster, node, spec.flavor)?;
        }
        Ok(nodes)
    })
}

/// Stops the programs except lvmd, as when a cluster is switched over. Volumes, mounts and objects stay as they are.
pub fn stop(cluster: &Cluster, nodes: &[Node], spec: &TopolvmSpec) -> Result<()> {
    for node in nodes {
        node.stop_kept(NODE)?;
    }
    for sidecar in &spec.sidecars {
        sidecar.stop(cluster)?;
    }
    cluster.stop(CONTROLLER, STOP_TIMEOUT)
}

/// Starts the programs again that [`stop`] has ended, or those of another specification on the same nodes.
pub fn start(cluster: &Cluster, nodes: &[Node], spec: &TopolvmSpec) -> Result<()> {
    install_controller(cluster, spec)?;
    for node in nodes {
        start_agent(cluster, node, spec)?;
    }
    nodes.iter().try_for_each(|node| wait_for_driver(cluster, node, spec.flavor))
}

/// Starts the product as the pods of its manifests, and waits until they are ready.
fn start_pods(cluster: &Cluster, nodes: &[Node], spec: &TopolvmSpec) -> Result<()> {
    nodes.iter().try_for_each(|node| run_node_script(node, spec))?;
    roll_out(cluster, &spec.manifests)
}

/// Applies the manifests, and starts the controller and the sidecars, unless they are pods.
fn install_controller(cluster: &Cluster, spec: &TopolvmSpec) -> Result<()> {
    let apply = ["apply", "--server-side", "--force-conflicts"];
    apply_without_workloads(cluster, &spec.manifests)?;
    let storage_class = manifests().join("base/storageclass.yaml");
    cluster.kubectl_ok(apply.iter().map(Path::new).chain([Path::new("-f"), &storage_class]))?;
    if spec.sidecars.contains(&Sidecar::SnapshotController) {
        sidecars::apply_snapshot_crds(cluster)?;
    }
    cluster.kubectl_ok(["wait", "--for=condition=Established", "--timeout=180s", "crd", "--all"])?;
    if spec.in_pods {
        return spec
            .sidecars
            .iter()
            .filter(|sidecar| **sidecar == Sidecar::SnapshotController)
            .try_for_each(|sidecar| sidecar.start(cluster, &controller_socket(cluster)));
    }
    write_account_kubeconfig(cluster, CONTROLLER, None, &controller_kubeconfig(cluster))?;
    start_controller(cluster, spec)?;
    spec.sidecars.iter().try_for_each(|sidecar| sidecar.start(cluster, &controller_socket(cluster)))
}
