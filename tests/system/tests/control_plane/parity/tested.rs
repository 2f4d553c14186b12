//! The program that a run tests: a provisioner or a snapshotter, the stock one or that of topolvm-controller.

use std::path::Path;

use anyhow::Result;
use testbed::cluster::Cluster;
use testbed::topolvm::TopolvmSpec;

use super::provisioner::Provisioner;
use super::snapshotter::Snapshotter;

/// A program under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tested {
    Provisioner(Provisioner),
    Snapshotter(Snapshotter),
}

impl Tested {
    /// Returns the name of its results.
    pub(super) fn name(self) -> String {
        match self {
            Self::Provisioner(tested) => format!("{tested:?}"),
            Self::Snapshotter(tested) => format!("{tested:?}-snapshotter"),
        }
    }

    /// Returns the one that takes over.
    pub(super) const fn other(self) -> Self {
        match self {
            Self::Provisioner(tested) => Self::Provisioner(tested.other()),
            Self::Snapshotter(tested) => Self::Snapshotter(tested.other()),
        }
    }

    /// Returns the specification of its cluster, with manifests in the directory.
    pub(super) fn spec(self, directory: &Path) -> Result<TopolvmSpec> {
        match self {
            Self::Provisioner(tested) => tested.spec(directory),
            Self::Snapshotter(tested) => tested.spec(directory),
        }
    }

    /// Starts it beside its controller.
    pub(super) fn start(self, cluster: &Cluster) -> Result<()> {
        match self {
            Self::Provisioner(tested) => tested.start(cluster),
            Self::Snapshotter(tested) => tested.start(cluster),
        }
    }

    /// Kills it, as the end of its machine does.
    pub(super) fn kill(self, cluster: &Cluster) -> Result<()> {
        match self {
            Self::Provisioner(tested) => tested.kill(cluster),
            Self::Snapshotter(tested) => tested.kill(cluster),
        }
    }

    /// Starts it again after it was killed.
    pub(super) fn restart(self, cluster: &Cluster) -> Result<()> {
        match self {
            Self::Provisioner(tested) => tested.restart(cluster),
            Self::Snapshotter(tested) => tested.restart(cluster),
        }
    }

    /// Stops it, and starts the one that takes over.
    pub(super) fn hand_over(self, cluster: &Cluster) -> Result<()> {
        match self {
            Self::Provisioner(tested) => tested.hand_over(cluster),
            Self::Snapshotter(tested) => tested.hand_over(cluster),
        }
    }
}
