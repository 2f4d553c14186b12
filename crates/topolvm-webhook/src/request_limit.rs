//! Limits the requests to the API server that are open at the same time.

use std::sync::Arc;

use tokio::sync::Semaphore;

/// Open requests of all webhook calls together. As each takes a few milliseconds, that is some thousands a second.
const MAX_OPEN_REQUESTS: usize = 16;

/// A semaphore for requests to the API server, first come, first served. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct RequestLimit(Arc<Semaphore>);

impl Default for RequestLimit {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_OPEN_REQUESTS)))
    }
}

impl RequestLimit {
    /// Sends this request as soon as the limit allows, and returns its answer.
    pub(crate) async fn run<T>(&self, request: impl Future<Output = T>) -> T {
        // Never closed, so that there is always a permit
        let _permit = self.0.acquire().await;
        request.await
    }
}
