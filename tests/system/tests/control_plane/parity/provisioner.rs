//! The two provisioners: the stock csi-provisioner, and the one in topolvm-controller.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use testbed::cluster::Cluster;
use testbed::sidecars::Sidecar;
use testbed::topolvm::{self, CONTROLLER, TopolvmSpec, controller_socket};

use crate::fixture::{GRACE, spec};

/// Time that a volume may take before the provisioner asks again. Scenarios with a stopped agent wait for it.
const TIMEOUT: &str = "--timeout=20s";

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
    pub(super) fn spec(self) -> Result<TopolvmSpec> {
        let arguments: &[&str] = match self {
            Self::Stock => &[],
            Self::Embedded => &["--controllers=provisioner"],
        };
        Ok(spec(arguments)?.with_snapshots())
    }

    /// Starts it beside a controller that was started with its [`spec`](Self::spec).
    pub(super) fn start(self, cluster: &Cluster) -> Result<()> {
        match self {
            Self::Stock => {
                let mut command = Sidecar::UpstreamProvisioner.command(cluster, &controller_socket(cluster));
                // The last ones count. It has the rights of its deployment
                command.arg("--kubeconfig").arg(account_kubeconfig(cluster));
                command.args([TIMEOUT, "--enable-capacity=false"]);
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
            Self::Embedded => topolvm::start_controller(cluster, &self.spec()?),
        }
    }

    /// Stops it, and starts the other one with its controller.
    pub(super) fn hand_over(self, cluster: &Cluster) -> Result<()> {
        let other = self.other();
        if self == Self::Stock {
            Sidecar::UpstreamProvisioner.stop(cluster)?;
        }
        cluster.stop(CONTROLLER, GRACE)?;
        topolvm::start_controller(cluster, &other.spec()?)?;
        other.start(cluster)
    }
}

/// Returns the kubeconfig of the ServiceAccount that topolvm-controller and its sidecars share.
fn account_kubeconfig(cluster: &Cluster) -> PathBuf {
    cluster.directory().join("topolvm-controller.kubeconfig")
}

/// Returns true for Events of a provisioner: csi-provisioner reports as the driver and the identity of its process.
pub(super) fn is_provisioner(event: &Value) -> bool {
    let component = event.pointer("/source/component").and_then(Value::as_str).unwrap_or_default();
    let reporter = event.pointer("/reportingComponent").and_then(Value::as_str).unwrap_or_default();
    [component, reporter].into_iter().any(|name| name.starts_with("topolvm.io_") || name == "topolvm-controller")
}
