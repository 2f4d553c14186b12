//! Runs a change under the lock of its volume group, to its end.

use std::sync::Arc;

use lvm::Host;
use tracing::Instrument as _;

use super::group::Group;
use super::state::Engine;
use crate::error::Error;
use crate::process_count;

impl<R: Host> Engine<R> {
    /// Waits for the lock of the group and runs a change under it. The change runs to its end also when the caller
    /// gives up waiting: nobody would know what a change that was cut off left behind.
    pub(super) async fn with_lock<T: Send + 'static, F: Future<Output = Result<T, Error>> + Send + 'static>(
        &self,
        group: Arc<Group>,
        change: impl FnOnce(Self, Arc<Group>) -> F,
    ) -> Result<T, Error> {
        let lock = group.lock().await;
        let change = change(self.clone(), group);
        let locked = async move {
            let result = change.await;
            drop(lock);
            result
        };
        let counted = process_count::count_for_request(locked);
        self.inner.tasks.finish(counted.in_current_span()).await.map_err(Error::Interrupted)?
    }
}
