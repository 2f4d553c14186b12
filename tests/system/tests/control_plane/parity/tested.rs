//! The program that a run tests: a sidecar, or the controller of topolvm-controller that does its work.

use std::time::Duration;

use anyhow::Result;
use system_tests::kustomization::Kustomization;
use testbed::cluster::Cluster;
use testbed::sidecars::Sidecar;
use testbed::topolvm::{self, CONTROLLER, TopolvmSpec, controller_socket};

use super::provisioner::{STOCK_PROVISIONER, provisioner_spec};
use super::resizer::{STOCK_RESIZER, resizer_spec};
use super::snapshotter::{STOCK_SNAPSHOTTER, snapshotter_spec};
use crate::fixture::GRACE;

/// The work of a program under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Provisioner,
    Resizer,
    Snapshotter,
}

/// A program under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tested {
    pub(super) work: Work,
    /// True for that in topolvm-controller.
    is_embedded: bool,
}

impl Tested {
    /// Returns the sidecar.
    pub(super) const fn stock(work: Work) -> Self {
        Self { work, is_embedded: false }
    }

    /// Returns the controller of topolvm-controller.
    pub(super) const fn embedded(work: Work) -> Self {
        Self { work, is_embedded: true }
    }

    /// Returns the name of its results.
    pub(super) fn name(self) -> String {
        format!("{}-{:?}", if self.is_embedded { "Embedded" } else { "Stock" }, self.work)
    }

    /// Returns the one that takes over.
    pub(super) const fn other(self) -> Self {
        Self { is_embedded: !self.is_embedded, ..self }
    }

    /// Returns the specification of its cluster.
    pub(super) fn spec(self) -> Result<TopolvmSpec> {
        match self.work {
            Work::Provisioner => provisioner_spec(self.is_embedded),
            Work::Resizer => resizer_spec(self.is_embedded),
            Work::Snapshotter => snapshotter_spec(self.is_embedded),
        }
    }

    /// Starts it beside a controller that was started with its [`spec`](Self::spec).
    pub(super) fn start(self, cluster: &Cluster) -> Result<()> {
        if self.is_embedded {
            return Ok(());
        }
        let components = &["sidecars", "group-snapshots"];
        let roles = Kustomization { base: "base", components, ..Kustomization::default() };
        topolvm::apply_without_workloads(cluster, &roles.write(&cluster.directory().join("sidecars"))?)?;
        let (sidecar, arguments) = self.sidecar();
        let mut command = sidecar.command(cluster, &controller_socket(cluster));
        // The last ones count. It has the rights of its deployment
        command.arg("--kubeconfig").arg(cluster.directory().join("topolvm-controller.kubeconfig"));
        command.args(arguments);
        cluster.spawn(sidecar.name(), &command)
    }

    /// Kills it, as the end of its machine does.
    pub(super) fn kill(self, cluster: &Cluster) -> Result<()> {
        cluster.stop(if self.is_embedded { CONTROLLER } else { self.sidecar().0.name() }, Duration::ZERO)
    }

    /// Starts it again after it was killed.
    pub(super) fn restart(self, cluster: &Cluster) -> Result<()> {
        if self.is_embedded { topolvm::start_controller(cluster, &self.spec()?) } else { self.start(cluster) }
    }

    /// Stops it, and starts the one that takes over with its controller.
    pub(super) fn hand_over(self, cluster: &Cluster) -> Result<()> {
        let other = self.other();
        if !self.is_embedded {
            self.sidecar().0.stop(cluster)?;
        }
        cluster.stop(CONTROLLER, GRACE)?;
        topolvm::start_controller(cluster, &other.spec()?)?;
        other.start(cluster)
    }

    /// Returns the sidecar with its flags.
    const fn sidecar(self) -> (Sidecar, &'static [&'static str]) {
        match self.work {
            Work::Provisioner => (Sidecar::UpstreamProvisioner, &STOCK_PROVISIONER),
            Work::Resizer => (Sidecar::Resizer, &STOCK_RESIZER),
            Work::Snapshotter => (Sidecar::Snapshotter, &STOCK_SNAPSHOTTER),
        }
    }
}
