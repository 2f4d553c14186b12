//! Flags of `undelete`.

/// Flags of `undelete`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct UndeleteFlags {
    /// Names of LogicalVolumes.
    #[arg(value_name = "NAME", required_unless_present = "all", conflicts_with = "all")]
    pub(super) names: Vec<String>,

    /// All LogicalVolumes whose volumes are referenced, also after a deletion of the CustomResourceDefinition.
    #[arg(long)]
    pub(super) all: bool,

    /// Print what would be recreated.
    #[arg(long)]
    pub(super) dry_run: bool,
}
