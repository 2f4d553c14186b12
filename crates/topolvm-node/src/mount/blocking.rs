//! Runs file system calls that can hang with a disk on threads of their own, with a deadline.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::{HungTask, MountError};

/// Deadline of a small file system call: stat, open, chmod, remove.
pub(crate) const FILE_DEADLINE: Duration = Duration::from_secs(15);

/// Runs a call that can hang with a disk on a thread of its own. After the deadline the caller gets
/// [`MountError::Hung`], and the thread is left to the kernel.
pub(crate) async fn run_blocking<T: Send + 'static>(
    limit: Duration,
    path: &Path,
    action: impl FnOnce(&Path) -> Result<T, MountError> + Send + 'static,
) -> Result<T, MountError> {
    let owned = path.to_owned();
    let hung_task = HungTask::default();
    let held = hung_task.clone();
    let thread = tokio::task::spawn_blocking(move || {
        let result = action(&owned);
        drop(held);
        result
    });
    match tokio::time::timeout(limit, thread).await {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => Err(MountError::io("look at", path, io::Error::other(panic))),
        Err(_) => Err(MountError::Hung { path: path.to_owned(), hung_task }),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use topolvm_runtime::InFlight;

    use super::*;

    #[tokio::test]
    async fn a_lock_that_a_hung_thread_holds_is_released_when_the_thread_ends() {
        let (release, released) = mpsc::channel::<()>();
        let hung = run_blocking(Duration::from_millis(1), Path::new("/disk"), move |_| Ok(released.recv()));
        let Err(MountError::Hung { hung_task, .. }) = hung.await else { panic!("it hangs") };
        let in_flight = InFlight::default();
        hung_task.hold_lock(in_flight.start("v1").unwrap());
        let weak = hung_task.downgrade();
        drop(hung_task);
        assert!(weak.upgrade().is_some());
        assert!(in_flight.start("v1").is_none());
        release.send(()).unwrap();
        while in_flight.start("v1").is_none() {
            std::thread::yield_now();
        }
        assert!(weak.upgrade().is_none());
    }
}
