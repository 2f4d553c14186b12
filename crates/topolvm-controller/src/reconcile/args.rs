//! Flags of the controllers.

use std::time::Duration;

use clap::ArgAction;

use crate::time_span::{parse_duration, parse_duration_or_zero};

/// The settings of the controllers.
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct ControllerSettings {
    /// Leave the claims and LogicalVolumes of a deleted Node alone.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true",
          require_equals = true, action = ArgAction::Set)]
    pub(crate) skip_node_finalize: bool,

    /// Claims carry the finalizer of the claim webhook on purpose. When such a claim is deleted, pods that are pending
    /// for it are deleted too, so that a StatefulSet makes both anew. Without this the finalizer is taken off all
    /// claims.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true",
          require_equals = true, action = ArgAction::Set)]
    pub(crate) pvc_finalizer: bool,

    /// Grow claims by themselves when their volumes are nearly full, where StorageClass and claim ask for it with the
    /// annotations of pvc-autoresizer.
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, default_missing_value = "true",
          require_equals = true, action = ArgAction::Set)]
    pub(crate) grow_claims: bool,

    /// Delete claims whose node is lost, where StorageClass or claim ask for it with topolvm.io/rebuild, so that their
    /// StatefulSets make them again, empty. Needs the rights of the component rebuild.
    #[arg(long, value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true",
          require_equals = true, action = ArgAction::Set)]
    pub(crate) rebuild_claims: bool,

    /// A node is lost when it was found so twice, with so much time in between.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration)]
    pub(crate) rebuild_grace_period: Duration,

    /// A LogicalVolume that was deleted so long ago, and whose Node is gone, is let go.
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = parse_duration)]
    pub(crate) stale_period: Duration,

    /// How often to look for such LogicalVolumes.
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = parse_duration)]
    pub(crate) cleanup_interval: Duration,

    /// How often to run the checks of kubectl topolvm doctor that need nothing but objects of the API server; 0 turns
    /// them off.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration_or_zero)]
    pub(crate) doctor_interval: Duration,
}
