//! Flags of `orphans`.

use clap::builder::PossibleValuesParser;
use cli_runtime::output::OutputArgs;
use topolvm_api::FILESYSTEMS;

/// A subcommand of `orphans`.
#[derive(Clone, Debug, clap::Subcommand)]
pub(crate) enum OrphanCommand {
    /// Lists the LVs whose LogicalVolumes do not exist, and the state of each.
    List {
        #[command(flatten)]
        output: OutputArgs,
    },

    /// Creates a LogicalVolume for an orphaned LV, and a PersistentVolume and claim if a claim is named. The data is
    /// kept.
    Restore {
        #[command(flatten)]
        flags: RestoreFlags,
    },

    /// Removes an orphaned LV with its data, like the deletion of a volume.
    Delete {
        /// Node of the LV.
        node: String,

        /// Name of the LV as shown by list.
        lv: String,

        /// Confirm that the data is deleted.
        #[arg(long, required = true)]
        yes: bool,
    },
}

/// Flags of `orphans restore`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RestoreFlags {
    /// Node of the LV.
    pub(super) node: String,

    /// Name of the LV as shown by list.
    pub(super) lv: String,

    /// Name of the LogicalVolume and PersistentVolume. Default: the name of the deleted LogicalVolume.
    #[arg(long, value_name = "NAME")]
    pub(super) name: Option<String>,

    /// Create a PersistentVolume and this claim in the namespace. Without this flag only the LogicalVolume is created.
    #[arg(long, value_name = "NAME")]
    pub(super) claim: Option<String>,

    /// StorageClass of the PersistentVolume and claim; it determines whether the volume can be expanded.
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub(super) storage_class: String,

    /// Filesystem on the LV. With a wrong value mounting fails; the LV is never formatted.
    #[arg(long, value_parser = PossibleValuesParser::new(FILESYSTEMS), default_value = FILESYSTEMS[0],
          conflicts_with = "block")]
    pub(super) filesystem: String,

    /// The LV is a raw block volume.
    #[arg(long)]
    pub(super) block: bool,
}
