//! The commands that change an installation, and their flags.

use clap::Subcommand;

use crate::install::{Flags, RunFlags};
use crate::trial::TrialFlags;
use crate::uninstall::UninstallFlags;

/// Command that changes an installation, with its flags.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Installs TopoLVM: checks the cluster, prints the plan, applies it, and tests a volume. A second run changes
    /// nothing.
    ///
    /// The exit status is 0 if the installation is complete or already up to date, 1 if the cluster does not meet the
    /// requirements or a step failed, and 2 if flags are invalid. The checks run before anything is changed.
    #[command(after_help = "Examples:\n  kubectl topolvm install --volume-group vg0\n  \
        kubectl topolvm install --lvmd-config lvmd.yaml --image registry.example/topolvm:0.1.0\n  \
        kubectl topolvm install --lvmd embedded --node-selector storage=local --dry-run\n  \
        kubectl topolvm install --render >topolvm.yaml")]
    Install {
        /// The options of the installation.
        #[command(flatten)]
        options: Flags,

        /// The flags of this run.
        #[command(flatten)]
        run: RunFlags,
    },

    /// Upgrades an installation to this version and changes the given options. Options that are not given keep their
    /// values.
    ///
    /// Pods are replaced node by node while volumes stay in use. Objects that the new version no longer needs are
    /// removed. The exit status is that of install.
    #[command(after_help = "Examples:\n  kubectl topolvm upgrade --diff\n  \
        kubectl topolvm upgrade --image registry.example/topolvm:0.2.0\n  \
        kubectl topolvm upgrade --lvmd embedded")]
    Upgrade {
        /// The options of the installation.
        #[command(flatten)]
        options: Flags,

        /// The flags of this run.
        #[command(flatten)]
        run: RunFlags,
    },

    /// Creates a volume group in a file on nodes without a disk for volumes, and installs TopoLVM if it is not
    /// installed. For evaluation only, not for data that you need.
    ///
    /// The exit status is that of install. A second run repairs a changed setup, grows the file, or adds nodes.
    #[command(after_help = "Examples:\n  kubectl topolvm trial\n  \
        kubectl topolvm trial --size 20Gi --node n1 --node n2\n  \
        kubectl topolvm trial --remove")]
    Trial {
        /// The flags of the command.
        #[command(flatten)]
        flags: TrialFlags,
    },

    /// Removes what install created. Refuses while volumes or claims exist; never removes an LV.
    ///
    /// The exit status is 0 if everything is removed or nothing was installed, 1 if volumes are in use or a step
    /// failed, and 2 if flags are invalid.
    #[command(after_help = "Examples:\n  kubectl topolvm uninstall --dry-run\n  kubectl topolvm uninstall\n  \
        kubectl topolvm uninstall --keep-volumes")]
    Uninstall {
        /// The flags of the command.
        #[command(flatten)]
        flags: UninstallFlags,
    },
}
