//! The two snapshotters: the stock csi-snapshotter, and the one in topolvm-controller. Volumes are provisioned in the
//! controller with both.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use system_tests::kustomization::Kustomization;
use testbed::cluster::Cluster;
use testbed::sidecars::Sidecar;
use testbed::topolvm::{self, CONTROLLER, TopolvmSpec, controller_socket};

use super::provisioner::{ELECTION, account_kubeconfig};
use crate::fixture::{GRACE, spec};

/// Flags of csi-snapshotter with the effect of those that the embedded snapshotter has or implies. Scenarios with a
/// stopped agent wait for the timeout.
const STOCK: [&str; 4] = [
    "--timeout=30s",
    "--retry-interval-start=500ms",
    "--extra-create-metadata",
    "--feature-gates=CSIVolumeGroupSnapshot=false",
];
/// Flags of topolvm-controller with the embedded snapshotter.
const EMBEDDED: [&str; 3] =
    ["--controllers=snapshotter", "--snapshotter-timeout=30s", "--snapshotter-retry-interval-start=500ms"];

/// A snapshotter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Snapshotter {
    Stock,
    Embedded,
}

impl Snapshotter {
    /// Returns the other one.
    pub(super) const fn other(self) -> Self {
        match self {
            Self::Stock => Self::Embedded,
            Self::Embedded => Self::Stock,
        }
    }

    /// Returns the specification of a cluster without nodes, with snapshots and the controller for this snapshotter.
    /// Manifests are written into the directory.
    pub(super) fn spec(self, directory: &Path) -> Result<TopolvmSpec> {
        let (components, arguments): (&[&str], &[&str]) = match self {
            Self::Stock => (&["embedded-provisioner"], &[]),
            Self::Embedded => (&["embedded-provisioner", "embedded-snapshotter"], &EMBEDDED),
        };
        let kustomization = Kustomization { base: "base", components, ..Kustomization::default() };
        let manifests = kustomization.write(&directory.join(format!("{self:?}-snapshotter")))?;
        let arguments = ELECTION.iter().chain(&["--controllers=provisioner"]).chain(arguments);
        let controller_arguments = arguments.map(|&argument| argument.to_owned()).collect();
        Ok(TopolvmSpec { manifests, controller_arguments, sidecars: vec![Sidecar::SnapshotController], ..spec(&[])? })
    }

    /// Starts it beside a controller that was started with its [`spec`](Self::spec).
    pub(super) fn start(self, cluster: &Cluster) -> Result<()> {
        match self {
            Self::Stock => {
                let mut command = Sidecar::Snapshotter.command(cluster, &controller_socket(cluster));
                // The last ones count. It has the rights of its deployment
                command.arg("--kubeconfig").arg(account_kubeconfig(cluster));
                command.args(STOCK);
                cluster.spawn(Sidecar::Snapshotter.name(), &command)
            }
            Self::Embedded => Ok(()),
        }
    }

    /// Kills it, as the end of its machine does.
    pub(super) fn kill(self, cluster: &Cluster) -> Result<()> {
        match self {
            Self::Stock => cluster.stop(Sidecar::Snapshotter.name(), Duration::ZERO),
            Self::Embedded => cluster.stop(CONTROLLER, Duration::ZERO),
        }
    }

    /// Starts it again after it was killed.
    pub(super) fn restart(self, cluster: &Cluster) -> Result<()> {
        match self {
            Self::Stock => self.start(cluster),
            Self::Embedded => topolvm::start_controller(cluster, &self.spec(cluster.directory())?),
        }
    }

    /// Stops it, and starts the other one with its controller.
    pub(super) fn hand_over(self, cluster: &Cluster) -> Result<()> {
        let other = self.other();
        if self == Self::Stock {
            Sidecar::Snapshotter.stop(cluster)?;
        }
        cluster.stop(CONTROLLER, GRACE)?;
        let spec = other.spec(cluster.directory())?;
        topolvm::apply_without_workloads(cluster, &spec.manifests)?;
        topolvm::start_controller(cluster, &spec)?;
        other.start(cluster)
    }
}

/// Returns true for Events of a snapshotter about VolumeSnapshotContents.
pub(super) fn is_snapshotter(event: &Value) -> bool {
    let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let reporters = [text("/source/component"), text("/reportingComponent")];
    let is_one = |name: &&str| name.starts_with("csi-snapshotter ") || *name == CONTROLLER;
    text("/involvedObject/kind") == "VolumeSnapshotContent" && reporters.iter().any(is_one)
}
