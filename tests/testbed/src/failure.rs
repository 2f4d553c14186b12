//! Errors of tests and of the test bed, with the state of the cluster.

use anyhow::{Result, anyhow};

/// An error that includes the state of the test bed.
pub trait WithState<T> {
    /// Adds the state of the test bed, such as logs, to an error: after the reason, because summaries show the
    /// beginning.
    fn with_state(self, state: impl FnOnce() -> String) -> Result<T>;
}

impl<T> WithState<T> for Result<T> {
    fn with_state(self, state: impl FnOnce() -> String) -> Self {
        self.map_err(|error| anyhow!("{error:#}\n{}", state()))
    }
}
