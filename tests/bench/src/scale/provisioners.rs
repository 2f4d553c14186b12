//! The programs that provision volumes: topolvm-controller with the stock sidecars, or alone.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use system_tests::kustomization::Kustomization;
use testbed::cluster::Cluster;
use testbed::sidecars::Sidecar;
use testbed::topolvm::{self, CONTROLLER, TopolvmSpec, controller_socket};

/// Defaults of the flags that the test bed sets to other values.
const DEFAULTS: [&str; 3] = ["--kube-api-qps=5", "--kube-api-burst=10", "-v=0"];
/// The same of sidecars that call the driver.
const CALL_DEFAULTS: [&str; 2] = ["--timeout=10s", "--retry-interval-start=1s"];
/// The sidecars, with the same of theirs alone and with flags of the manifests that the test bed does not set.
const SIDECARS: [(Sidecar, &[&str]); 3] = [
    (Sidecar::UpstreamProvisioner, &["--enable-capacity=false"]),
    (Sidecar::Resizer, &["--retry-interval-max=5m"]),
    (Sidecar::Snapshotter, &["--feature-gates=CSIVolumeGroupSnapshot=false"]),
];
/// Time for the controller to exit after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

/// The programs that provision volumes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Provisioners {
    /// The stock sidecars with the flags of the manifests.
    Sidecars,
    /// The controllers of topolvm-controller.
    Embedded,
}

impl Provisioners {
    /// Returns the beginning of the names of claims.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Sidecars => "sidecars",
            Self::Embedded => "embedded",
        }
    }

    /// Returns the specification of a cluster without nodes and with the controller. Manifests are written into the
    /// directory.
    pub(super) fn spec(self, directory: &Path) -> Result<TopolvmSpec> {
        let (components, controllers): (&[&str], _) = match self {
            Self::Sidecars => (&["sidecars"], "capacity"),
            Self::Embedded => (&[], "provisioner,capacity,resizer,snapshotter"),
        };
        let kustomization = Kustomization { base: "base", components, ..Kustomization::default() };
        let manifests = kustomization.write(&directory.join(self.name()))?;
        let controller_arguments = vec![format!("--controllers={controllers}")];
        Ok(TopolvmSpec { manifests, controller_arguments, embeds_controllers: false, ..TopolvmSpec::nodes(0)? })
    }

    /// Starts them in a cluster where the controller runs with other flags or not at all.
    pub(super) fn start(self, cluster: &Cluster, directory: &Path) -> Result<()> {
        let spec = self.spec(directory)?;
        cluster.stop(CONTROLLER, GRACE)?;
        topolvm::apply_without_workloads(cluster, &spec.manifests)?;
        topolvm::start_controller(cluster, &spec)?;
        match self {
            Self::Sidecars => {
                SIDECARS.into_iter().try_for_each(|(sidecar, flags)| start_sidecar(cluster, sidecar, flags))
            }
            Self::Embedded => Ok(()),
        }
    }

    /// Stops them.
    pub(super) fn stop(self, cluster: &Cluster) -> Result<()> {
        if self == Self::Sidecars {
            SIDECARS.into_iter().try_for_each(|(sidecar, _)| sidecar.stop(cluster))?;
        }
        cluster.stop(CONTROLLER, GRACE)
    }
}

/// Starts a sidecar with the flags of the manifests and the rights of its ServiceAccount. Of repeated flags the last
/// one counts.
fn start_sidecar(cluster: &Cluster, sidecar: Sidecar, flags: &[&str]) -> Result<()> {
    let mut command = sidecar.command(cluster, &controller_socket(cluster));
    command.arg("--kubeconfig").arg(topolvm::controller_kubeconfig(cluster));
    command.args(DEFAULTS).args(CALL_DEFAULTS).args(flags);
    cluster.spawn(sidecar.name(), &command)
}
