//! Runs file system calls that can hang with a disk on separate threads, with a deadline.

use std::io;
use std::path::Path;
use std::time::Duration;

use super::{HungTask, MountError};

/// Deadline of a small file system call: stat, open, chmod, remove.
pub const FILE_DEADLINE: Duration = Duration::from_secs(15);

/// Runs a call that can hang with a disk on a separate thread. After the deadline the caller gets [`MountError::Hung`],
/// and the thread is left to the kernel.
pub async fn run_blocking<T: Send + 'static>(
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
        Ok(Err(panic)) => Err(MountError::io("inspect", path, io::Error::other(panic))),
        Err(_) => Err(MountError::Hung { path: path.to_owned(), hung_task }),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use tokio::sync::Mutex;

    use super::*;

    #[tokio::test]
    async fn hung_task_holds_its_lock_until_the_thread_ends() {
        let (release, released) = mpsc::channel::<()>();
        let hung = run_blocking(Duration::from_millis(1), Path::new("/disk"), move |_| Ok(released.recv()));
        let Err(MountError::Hung { hung_task, .. }) = hung.await else { panic!("it hangs") };
        let lock = Arc::new(Mutex::new(()));
        hung_task.hold_lock(Arc::clone(&lock).try_lock_owned().unwrap());
        let weak = hung_task.downgrade();
        drop(hung_task);
        assert!(weak.upgrade().is_some());
        assert!(lock.try_lock().is_err());
        release.send(()).unwrap();
        while lock.try_lock().is_err() {
            std::thread::yield_now();
        }
        assert!(weak.upgrade().is_none());
    }
}
