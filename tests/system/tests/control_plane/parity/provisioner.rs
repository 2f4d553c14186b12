//! The two provisioners: the stock csi-provisioner, and the one in topolvm-controller.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use system_tests::kustomization::Kustomization;
use testbed::cluster::Cluster;
use testbed::sidecars::Sidecar;
use testbed::topolvm::{self, CONTROLLER, TopolvmSpec, controller_socket, manifests};

use crate::fixture::{GRACE, spec};

/// Flags of csi-provisioner with the effect of those that the embedded provisioner has or implies, in the place of
/// those of the test bed. A volume may take the timeout before the provisioner asks again; scenarios with a stopped
/// agent wait for it.
const STOCK: [&str; 6] = [
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

/// A provisioner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Provisioner {
    Stock,
    Embedded,
}

impl Provisioner {
    /// Returns the other one.
    pub(super) const fn other(self) -> Self {
        match self {
            Self::Stock => Self::Embedded,
            Self::Embedded => Self::Stock,
        }
    }

    /// Returns the specification of a cluster without nodes, with snapshots and the controller for this provisioner.
    /// Manifests are written into the directory.
    pub(super) fn spec(self, directory: &Path) -> Result<TopolvmSpec> {
        let arguments: &[&str] = match self {
            Self::Stock => &[],
            Self::Embedded => &EMBEDDED,
        };
        let controller_arguments = ELECTION.iter().chain(arguments).map(|&argument| argument.to_owned()).collect();
        let manifests = self.manifests(directory)?;
        Ok(TopolvmSpec { manifests, controller_arguments, ..spec(&[])? }.with_snapshots())
    }

    /// Returns the kustomization with the rights of its deployment.
    fn manifests(self, directory: &Path) -> Result<PathBuf> {
        match self {
            Self::Stock => Ok(manifests().join("base")),
            Self::Embedded => {
                let components = &["embedded-provisioner"];
                let kustomization = Kustomization { base: "base", components, ..Kustomization::default() };
                kustomization.write(&directory.join("embedded-provisioner"))
            }
        }
    }

    /// Starts it beside a controller that was started with its [`spec`](Self::spec).
    pub(super) fn start(self, cluster: &Cluster) -> Result<()> {
        match self {
            Self::Stock => {
                let mut command = Sidecar::UpstreamProvisioner.command(cluster, &controller_socket(cluster));
                // The last ones count. It has the rights of its deployment
                command.arg("--kubeconfig").arg(account_kubeconfig(cluster));
                command.args(STOCK);
                cluster.spawn(Sidecar::UpstreamProvisioner.name(), &command)
            }
            Self::Embedded => Ok(()),
        }
    }

    /// Kills it, as the end of its machine does.
    pub(super) fn kill(self, cluster: &Cluster) -> Result<()> {
        match self {
            Self::Stock => cluster.stop(Sidecar::UpstreamProvisioner.name(), Duration::ZERO),
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
            Sidecar::UpstreamProvisioner.stop(cluster)?;
        }
        cluster.stop(CONTROLLER, GRACE)?;
        let spec = other.spec(cluster.directory())?;
        topolvm::apply_without_workloads(cluster, &spec.manifests)?;
        topolvm::start_controller(cluster, &spec)?;
        other.start(cluster)
    }
}

/// Returns the kubeconfig of the ServiceAccount that topolvm-controller and its sidecars share.
pub(super) fn account_kubeconfig(cluster: &Cluster) -> PathBuf {
    cluster.directory().join("topolvm-controller.kubeconfig")
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
