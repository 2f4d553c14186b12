//! Controllers of a run: the sidecars, topolvm-controller, or each in turn create, delete, expand and snapshot volumes.

use std::path::Path;

use anyhow::Result;
use clap::ValueEnum;
use system_tests::kustomization::Kustomization;
use testbed::sidecars::Sidecar;
use testbed::topolvm::{CONTROLLER, TopolvmSpec};

/// The second replica of the controller.
pub(super) const OTHER_CONTROLLER: &str = "topolvm-controller-2";

/// The components with the roles of [`EMBEDDED`].
const COMPONENTS: [&str; 3] = ["embedded-provisioner", "embedded-resizer", "embedded-snapshotter"];
/// Flags of topolvm-controller that replace the sidecars, with their timeouts and pauses in a run.
const EMBEDDED: [&str; 10] = [
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

/// The programs of a run that create, delete, expand and snapshot volumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Controllers {
    /// csi-provisioner, csi-resizer and csi-snapshotter.
    #[default]
    Sidecars,
    /// topolvm-controller.
    Embedded,
    /// The sidecars, topolvm-controller after a third of the steps, and the sidecars again after another third.
    Changing,
}

impl Controllers {
    /// Returns the specification with the roles of all programs of the run.
    pub(super) fn with_roles(self, mut spec: TopolvmSpec, directory: &Path) -> Result<TopolvmSpec> {
        if self != Self::Sidecars {
            let roles = Kustomization { base: "base", components: &COMPONENTS, ..Kustomization::default() };
            spec.manifests = roles.write(&directory.join("roles"))?;
        }
        Ok(spec)
    }

    /// Returns the names of the programs that create volumes in the run.
    pub(super) fn provisioners(self) -> &'static [&'static str] {
        match self {
            Self::Sidecars => const { &[Sidecar::Provisioner.name()] },
            Self::Embedded => &[CONTROLLER, OTHER_CONTROLLER],
            Self::Changing => const { &[Sidecar::Provisioner.name(), CONTROLLER, OTHER_CONTROLLER] },
        }
    }
}

/// Returns true for a sidecar that topolvm-controller can replace.
pub(super) fn is_replaceable(sidecar: Sidecar) -> bool {
    sidecar != Sidecar::SnapshotController
}

/// Returns the flags of topolvm-controller in place of the sidecars, or beside them.
pub(super) fn flags(is_embedded: bool) -> &'static [&'static str] {
    if is_embedded { &EMBEDDED } else { &[] }
}
