//! Flags of the controllers.

use std::time::Duration;

use clap::ArgAction;

use topolvm_runtime::time_span::{parse_duration, parse_duration_or_zero};

/// The settings of the controllers.
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
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

    /// Grow claims automatically when their volumes are nearly full, if StorageClass and claim have the annotations of
    /// pvc-autoresizer.
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, default_missing_value = "true",
          require_equals = true, action = ArgAction::Set)]
    pub(crate) grow_claims: bool,

    /// Delete claims of lost nodes if StorageClass or claim request it with topolvm.io/rebuild, so that their
    /// StatefulSets recreate them empty. Requires the rights of the component rebuild.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true",
          require_equals = true, action = ArgAction::Set)]
    pub(crate) rebuild_claims: bool,

    /// Time between the two observations after which a node counts as lost.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration)]
    pub(crate) rebuild_grace_period: Duration,

    /// Age of a deletion after which the controller removes the finalizer of a LogicalVolume whose Node is gone.
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = parse_duration)]
    pub(crate) stale_period: Duration,

    /// Interval of the search for such LogicalVolumes.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = parse_duration)]
    pub(crate) cleanup_interval: Duration,

    /// Interval of the checks of kubectl topolvm doctor that need only objects of the API server; 0 disables them.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration_or_zero)]
    pub(crate) doctor_interval: Duration,
}
