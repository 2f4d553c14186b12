//! Locks that let one call at a time work on a volume. The sidecars ask again after `ABORTED`.

use topolvm_runtime::{InFlight, Turn};

/// A lock for each name or id of a volume or snapshot. Clones share the locks.
#[derive(Clone, Default)]
pub(super) struct OperationLocks(InFlight);

/// Another call for the same volume has not finished.
#[derive(Debug, thiserror::Error)]
#[error("another call for volume {0} has not finished yet")]
pub(super) struct OperationPending(String);

impl OperationLocks {
    /// Locks a name or id until the guard is dropped, and adds it to the log line of the call.
    pub(super) fn lock(&self, key: &str) -> Result<Turn, OperationPending> {
        tracing::Span::current().record("volume", key);
        self.0.start(key).ok_or_else(|| OperationPending(key.to_owned()))
    }
}
