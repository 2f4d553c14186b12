//! Flags of the controllers.

use std::time::Duration;

use clap::ArgAction;
use topolvm_runtime::time_span::parse_duration;

/// The settings of the controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct ControllerSettings {
    /// Keep the claims and LogicalVolumes of a deleted Node.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true",
          require_equals = true, action = ArgAction::Set)]
    pub(crate) skip_node_finalize: bool,

    /// Keep the finalizer that the claim webhook adds to claims. When such a claim is deleted, pending pods that use it
    /// are deleted too, so that a StatefulSet recreates both. Without this flag the controller removes the finalizer
    /// from all claims.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true",
          require_equals = true, action = ArgAction::Set)]
    pub(crate) pvc_finalizer: bool,
}

/// The settings of the search for LogicalVolumes whose Node is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct CleanupSettings {
    /// Age of a deletion after which the controller removes the finalizer of a LogicalVolume whose Node is gone.
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = parse_duration)]
    pub(crate) stale_period: Duration,

    /// Interval of the search for such LogicalVolumes.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = parse_duration)]
    pub(crate) cleanup_interval: Duration,
}
