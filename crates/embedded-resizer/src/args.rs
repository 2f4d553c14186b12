//! The flags of the resizer.

use std::num::NonZeroUsize;
use std::time::Duration;

use topolvm_runtime::time_span::parse_duration;

/// The flags of the resizer.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct ResizerArgs {
    /// With --controllers=resizer: number of claims that are expanded or modified at the same time.
    #[arg(long, value_name = "COUNT", default_value = "10")]
    pub resizer_workers: NonZeroUsize,

    /// With --controllers=resizer: pause after the first failure to expand or modify a volume. It doubles with each
    /// failure.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    pub resizer_retry_interval_start: Duration,

    /// With --controllers=resizer: longest pause between attempts to expand or modify a volume, and the pause after a
    /// request that the driver calls infeasible.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = parse_duration)]
    pub resizer_retry_interval_max: Duration,

    /// With --controllers=resizer: time after which an attempt to expand or modify a volume counts as failed.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub resizer_timeout: Duration,
}
