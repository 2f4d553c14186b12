//! What is read of the API server to answer it.

use std::sync::Arc;

use tokio::sync::Semaphore;

/// Requests of all webhook calls together that the API server gets at the same time: as each takes a few milliseconds, it is some thousands
/// a second.
const AT_ONCE: usize = 16;

/// Lets no more requests through than the API server is to get at once; who has waited longest is next. Clones share the limit.
#[derive(Clone, Debug)]
pub(crate) struct Reads(Arc<Semaphore>);

impl Default for Reads {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONCE)))
    }
}

impl Reads {
    /// The answer to this request when its turn has come.
    pub(crate) async fn get<T>(&self, request: impl Future<Output = T>) -> T {
        // Never closed, so that there is always a permit
        let _permit = self.0.acquire().await;
        request.await
    }
}
