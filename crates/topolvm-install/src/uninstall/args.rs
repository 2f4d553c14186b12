//! Flags of `uninstall`.

use cli_runtime::output::ReportFormat;

/// Flags of `uninstall`.
#[derive(Clone, Debug, clap::Args)]
pub struct UninstallFlags {
    /// Remove the programs even if volumes exist. The volumes, their objects and CustomResourceDefinitions are kept.
    #[arg(long)]
    pub(super) keep_volumes: bool,

    /// Print what would be removed.
    #[arg(long)]
    pub(super) dry_run: bool,

    /// Timeout for the deletion of each object.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) timeout: u64,

    /// Output format of the list of removed objects.
    #[arg(long, short, value_enum, default_value_t)]
    pub(super) output: ReportFormat,
}

impl UninstallFlags {
    /// Returns the flags of a removal of everything.
    pub(crate) const fn all(timeout: u64) -> Self {
        Self { keep_volumes: false, dry_run: false, timeout, output: ReportFormat::Table }
    }
}
