//! Controllers of a run: the sidecars, topolvm-controller, or each in turn create, delete, expand and snapshot volumes.

use clap::ValueEnum;
use testbed::sidecars::Sidecar;
use testbed::topolvm::{CONTROLLER, EMBEDDED};

/// The second replica of the controller.
pub(super) const OTHER_CONTROLLER: &str = "topolvm-controller-2";

/// The programs of a run that create, delete, expand and snapshot volumes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Controllers {
    /// csi-provisioner, csi-resizer and csi-snapshotter.
    Sidecars,
    /// topolvm-controller.
    #[default]
    Embedded,
    /// The sidecars, topolvm-controller after a third of the steps, and the sidecars again after another third.
    Changing,
}

impl Controllers {
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
