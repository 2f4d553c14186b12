//! The flag of the checks.

use std::time::Duration;

use topolvm_runtime::time_span::parse_duration_or_zero;

/// The flag of the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub struct DoctorArgs {
    /// Interval of the checks of kubectl topolvm doctor that need only objects of the API server; 0 disables them.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration_or_zero)]
    pub doctor_interval: Duration,
}
