//! Flags of the recreation of claims.

use std::time::Duration;

use clap::ArgAction;
use topolvm_runtime::time_span::parse_duration;

/// The flags of the recreation of claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub struct RebuildArgs {
    /// Delete claims of lost nodes if StorageClass or claim request it with topolvm.io/rebuild, so that their
    /// StatefulSets recreate them empty. Requires the rights of the component rebuild.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true",
          require_equals = true, action = ArgAction::Set)]
    pub rebuild_claims: bool,

    /// Time between the two observations after which a node counts as lost.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration)]
    pub rebuild_grace_period: Duration,
}
