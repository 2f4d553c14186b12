//! Errors of trials and of the bed, with what is known of its state.

use anyhow::{Result, anyhow};

/// An error that tells the state of the bed as well.
pub trait WithState<T> {
    /// Adds the state of the bed, such as logs, to an error: behind the reason, since summaries show what comes first.
    fn with_state(self, state: impl FnOnce() -> String) -> Result<T>;
}

impl<T> WithState<T> for Result<T> {
    fn with_state(self, state: impl FnOnce() -> String) -> Self {
        self.map_err(|error| anyhow!("{error:#}\n{}", state()))
    }
}
