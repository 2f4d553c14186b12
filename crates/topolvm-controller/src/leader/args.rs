//! Flags with the times of the leader election.

use std::time::Duration;

use topolvm_runtime::ConfigError;

use topolvm_runtime::time_span::parse_duration;

/// The times of the election; client-go's flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub(crate) struct ElectionTiming {
    /// Time after which another replica takes over if the leader has not renewed the Lease; whole seconds.
    #[arg(long = "leader-election-lease-duration", value_name = "DURATION", default_value = "15s",
          value_parser = parse_duration)]
    pub(crate) lease_duration: Duration,

    /// Time after which the leader stops if it could not renew the Lease.
    #[arg(long = "leader-election-renew-deadline", value_name = "DURATION", default_value = "10s",
          value_parser = parse_duration)]
    pub(crate) renew_deadline: Duration,

    /// Interval at which the leader renews the Lease.
    #[arg(long = "leader-election-retry-period", value_name = "DURATION", default_value = "2s",
          value_parser = parse_duration)]
    pub(crate) retry_period: Duration,
}

impl ElectionTiming {
    /// Checks the times against each other. client-go has the same rules.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let Self { lease_duration: lease, renew_deadline: renew, retry_period: retry } = *self;
        if lease <= renew {
            return Err(ConfigError::new(format!(
                "--leader-election-lease-duration ({lease:?}) must be longer than --leader-election-renew-deadline \
                 ({renew:?}); otherwise two replicas could lead at once"
            )));
        }
        if renew <= retry.mul_f64(1.2) {
            return Err(ConfigError::new(format!(
                "--leader-election-renew-deadline ({renew:?}) must be longer than 1.2 times \
                 --leader-election-retry-period ({retry:?}), to leave time for a second attempt"
            )));
        }
        if lease.as_secs() == 0 || lease.subsec_nanos() != 0 {
            return Err(ConfigError::new("--leader-election-lease-duration must be whole seconds, such as 15s"));
        }
        Ok(())
    }
}
