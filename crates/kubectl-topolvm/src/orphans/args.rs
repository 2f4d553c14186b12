//! Flags of `orphans`.

use clap::builder::PossibleValuesParser;
use topolvm_api::FILESYSTEMS;

use crate::output::OutputArgs;

/// A subcommand of `orphans`.
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum OrphanCommand {
    /// Lists the LVs whose LogicalVolumes do not exist, and what becomes of each.
    List {
        #[command(flatten)]
        output: OutputArgs,
    },

    /// Makes a LogicalVolume for such an LV, and PersistentVolume and claim if a claim is named. Its data stays.
    Restore {
        #[command(flatten)]
        flags: RestoreFlags,
    },

    /// Removes such an LV with its data, as the deletion of a volume does.
    Delete {
        /// Node of the LV.
        node: String,

        /// Name of the LV, as list shows it.
        lv: String,

        /// Its data is to be lost.
        #[arg(long, required = true)]
        yes: bool,
    },
}

/// Flags of `orphans restore`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RestoreFlags {
    /// Node of the LV.
    pub(super) node: String,

    /// Name of the LV, as list shows it.
    pub(super) lv: String,

    /// Name of LogicalVolume and PersistentVolume; without it that of the LogicalVolume that is gone.
    #[arg(long, value_name = "NAME")]
    pub(super) name: Option<String>,

    /// Make PersistentVolume and this claim in the namespace. Without it only the LogicalVolume is made.
    #[arg(long, value_name = "NAME")]
    pub(super) claim: Option<String>,

    /// StorageClass of PersistentVolume and claim, which decides whether the volume can grow.
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub(super) storage_class: String,

    /// Filesystem on the LV. A wrong one is an error when a pod mounts it; nothing is ever formatted.
    #[arg(long, value_parser = PossibleValuesParser::new(FILESYSTEMS), default_value = FILESYSTEMS[0],
          conflicts_with = "block")]
    pub(super) filesystem: String,

    /// The LV is a raw block volume.
    #[arg(long)]
    pub(super) block: bool,
}
