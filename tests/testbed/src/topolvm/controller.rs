//! topolvm-controller as a process of this machine, inside the cluster's namespace.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::spec::TopolvmSpec;
use crate::cluster::Cluster;
use crate::sidecars::NAMESPACE;

/// Name of its process, and of its log, `log/NAME.log` of the cluster.
pub const CONTROLLER: &str = "topolvm-controller";

/// Flags that do the work of the sidecars. A node of a test may need minutes for a volume, and faults that a test
/// injects are retried after half a second.
pub const EMBEDDED: [&str; 10] = [
    "--controllers=provisioner,capacity,resizer,snapshotter",
    "--provisioner-timeout=3m",
    "--provisioner-retry-interval-start=500ms",
    "--provisioner-retry-interval-max=5s",
    "--resizer-timeout=3m",
    "--resizer-retry-interval-start=500ms",
    "--resizer-retry-interval-max=5s",
    "--snapshotter-timeout=3m",
    "--snapshotter-retry-interval-start=500ms",
    "--snapshotter-retry-interval-max=5s",
];

/// Returns the path of the socket of the CSI controller service.
pub fn controller_socket(cluster: &Cluster) -> PathBuf {
    cluster.directory().join("controller/csi.sock")
}

/// Returns true when the metrics of the controller at this address of the cluster's namespace show that it leads.
pub fn is_leading(cluster: &Cluster, address: &str) -> Result<bool> {
    let url = format!("http://{address}/metrics");
    let output = cluster.command("curl").args(["-sf", "--max-time", "5", &url]).output().context("run curl")?;
    let metrics = String::from_utf8_lossy(&output.stdout);
    let said = metrics.lines().find(|line| line.starts_with(r#"leader_election_master_status{name="topolvm"}"#));
    said.map(|line| line.ends_with(" 1")).with_context(|| format!("{address} does not say whether it leads"))
}

/// Starts topolvm-controller and waits until its socket answers; also after a test has stopped it with
/// [`Cluster::stop`].
pub fn start_controller(cluster: &Cluster, spec: &TopolvmSpec) -> Result<()> {
    let socket = controller_socket(cluster);
    cluster.spawn(CONTROLLER, &controller_command(cluster, spec, &socket)?)?;
    // An old socket file of a process that was killed refuses connections.
    cluster.ready(CONTROLLER, || UnixStream::connect(&socket).context("no socket yet"))?;
    Ok(())
}

/// Returns the command line of a topolvm-controller that serves on `socket`, in a directory that is created. A test may
/// add to it, for example for a second replica.
pub fn controller_command(cluster: &Cluster, spec: &TopolvmSpec, socket: &Path) -> Result<Command> {
    if let Some(directory) = socket.parent() {
        fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))?;
    }
    let mut command: Command = cluster.command(spec.programs.join(CONTROLLER));
    command.arg("--csi-socket").arg(socket);
    // A kubeconfig, unlike a pod, has no namespace
    command.arg(format!("--leader-election-namespace={NAMESPACE}"));
    command.args(EMBEDDED.iter().filter(|_| spec.embeds_controllers)).args(&spec.controller_arguments);
    command.env("POD_NAMESPACE", NAMESPACE);
    command.env("KUBECONFIG", controller_kubeconfig(cluster)).envs(spec.environment());
    Ok(command)
}

/// Returns the path of the kubeconfig of its ServiceAccount.
pub fn controller_kubeconfig(cluster: &Cluster) -> PathBuf {
    cluster.directory().join("topolvm-controller.kubeconfig")
}
