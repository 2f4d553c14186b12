//! The streams that `Watch` calls are answered with.

use std::sync::Arc;

use futures::{Stream, StreamExt as _, stream};
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use topolvm_runtime::CancellationToken;

use crate::error::Error;

/// Streams a value now and after each change; a consumer that is too slow for several changes gets the last one. Ends
/// with an error when the shutdown begins, so that a client knows it must come back.
pub(crate) fn changes<T: Send + Sync + 'static>(
    values: &watch::Sender<Arc<T>>,
    shutdown: CancellationToken,
) -> impl Stream<Item = Result<Arc<T>, Error>> + Send + use<T> {
    let until_shutdown = WatchStream::new(values.subscribe()).take_until(shutdown.cancelled_owned());
    until_shutdown.map(Ok).chain(stream::iter([Err(Error::Stopping)]))
}
