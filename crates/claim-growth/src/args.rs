//! The flag of automatic growth.

use clap::ArgAction;

/// The flag of automatic growth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub struct GrowthArgs {
    /// Grow claims automatically when their volumes are nearly full, if StorageClass and claim have the annotations of
    /// pvc-autoresizer.
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, default_missing_value = "true",
          require_equals = true, action = ArgAction::Set)]
    pub grow_claims: bool,
}
