//! File system calls that can hang with a disk, off the threads that serve everybody.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::Error;

/// How long a filesystem may take for a look or a small change.
pub(crate) const STAT: Duration = Duration::from_secs(15);

/// Does something that can hang with a disk on a thread of its own. After the limit the caller gets an error and the
/// thread is left to the kernel.
pub(crate) async fn blocking<T: Send + 'static>(
    limit: Duration,
    path: &Path,
    action: impl FnOnce(&Path) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let owned = path.to_owned();
    let thread = tokio::task::spawn_blocking(move || action(&owned));
    match tokio::time::timeout(limit, thread).await {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => Err(Error::io("look at", path, io::Error::other(panic))),
        Err(_) => Err(Error::Hangs(path.to_owned())),
    }
}
