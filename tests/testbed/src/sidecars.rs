//! The stock CSI sidecars, as processes of this machine inside the cluster's namespace, with the socket of a controller
//! plugin.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::cluster::Cluster;

/// The namespace in which csi-provisioner keeps its `CSIStorageCapacity` objects. It must exist.
pub const NAMESPACE: &str = "topolvm-system";

/// A sidecar. None of them elects a leader: there is one of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sidecar {
    /// csi-provisioner: creates and deletes volumes, publishes capacity.
    Provisioner,
    /// The same with the flags of TopoLVM's chart: without `--strict-topology` and without a default filesystem.
    /// Instead of the other.
    UpstreamProvisioner,
    /// csi-resizer: grows volumes.
    Resizer,
    /// csi-snapshotter: creates and deletes snapshots. [`SnapshotController`](Self::SnapshotController) must run too.
    Snapshotter,
    /// snapshot-controller: the part of snapshots that is independent of the driver. Requires the CRDs, see
    /// [`apply_snapshot_crds`].
    SnapshotController,
}

impl Sidecar {
    /// Returns the name of its program, log (`log/NAME.log`) and pid file (`run/NAME.pid`).
    pub const fn name(self) -> &'static str {
        match self {
            Self::Provisioner | Self::UpstreamProvisioner => "csi-provisioner",
            Self::Resizer => "csi-resizer",
            Self::Snapshotter => "csi-snapshotter",
            Self::SnapshotController => "snapshot-controller",
        }
    }

    /// Returns the command line for a plugin's socket. A test may add to it before it starts it with
    /// [`Cluster::spawn`].
    pub fn command(self, cluster: &Cluster, socket: &Path) -> Command {
        let mut command = cluster.command(cluster.tool(self.name()));
        command.arg("--kubeconfig").arg(cluster.inner_kubeconfig());
        // The usual 5 requests a second are for a cluster with other things to do.
        command.args(["--kube-api-qps=100", "--kube-api-burst=200", "-v=3"]);
        match self {
            Self::Provisioner | Self::UpstreamProvisioner => {
                add_csi_options(&mut command, socket);
                command.env("NAMESPACE", NAMESPACE).arg("--feature-gates=Topology=true");
                if self == Self::Provisioner {
                    command.args(["--strict-topology", "--default-fstype=ext4"]);
                }
                // No pod owns the capacity objects: this is none.
                command.args(["--enable-capacity", "--capacity-ownerref-level=-1", "--capacity-poll-interval=10s"]);
                command.args(["--kube-api-capacity-qps=100", "--kube-api-capacity-burst=200"]);
            }
            Self::Resizer => {
                add_csi_options(&mut command, socket);
                // Time until it retries an infeasible expansion, also of a claim whose size has just changed, when its
                // two events of that change coincide. Usually five minutes.
                command.arg("--retry-interval-max=5s");
            }
            Self::Snapshotter => add_csi_options(&mut command, socket),
            Self::SnapshotController => {}
        }
        command
    }

    /// Starts it.
    pub fn start(self, cluster: &Cluster, socket: &Path) -> Result<()> {
        cluster.spawn(self.name(), &self.command(cluster, socket))
    }

    /// Stops it; nothing happens when it does not run.
    pub fn stop(self, cluster: &Cluster) -> Result<()> {
        cluster.stop(self.name(), Duration::ZERO)
    }
}

/// Adds the options of sidecars that call a plugin.
fn add_csi_options(command: &mut Command, socket: &Path) {
    command.arg("--csi-address").arg(socket);
    // A deployment should have a minute; tests that inject faults use a first retry after half a second.
    command.args(["--timeout=180s", "--retry-interval-start=500ms"]);
}

/// Applies the CRDs of `VolumeSnapshot` and of its groups: without those of the groups snapshot-controller waits half a
/// minute for them.
pub fn apply_snapshot_crds(cluster: &Cluster) -> Result<()> {
    let directory = cluster.directory().join("crds");
    let mut arguments = vec!["apply".into(), "--server-side".into()];
    for entry in fs::read_dir(&directory).with_context(|| format!("list {}", directory.display()))? {
        let path = entry?.path();
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        // Not the kustomization.yaml in the same directory.
        if name.contains("snapshot.storage.k8s.io_") {
            arguments.extend(["-f".into(), path.into_os_string()]);
        }
    }
    cluster.kubectl_ok(arguments)?;
    cluster.kubectl_ok(["wait", "--for=condition=Established", "--timeout=180s", "crd", "--all"]).map(drop)
}
