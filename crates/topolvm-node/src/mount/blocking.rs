//! File system calls that can hang with a disk, off the threads that serve everybody.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use topolvm_runtime::Turn;

use super::Error;

/// How long a filesystem may take for a look or a small change.
pub(crate) const STAT: Duration = Duration::from_secs(15);

/// Something that waits for the kernel and that nobody can end: a thread, or a program that cannot be killed. It lives in
/// the thread; what it is given is kept until the wait is over.
#[derive(Clone, Debug, Default)]
pub struct Stuck(Arc<Mutex<Vec<Turn>>>);

/// Tells whether the wait is over without prolonging it.
#[derive(Clone, Debug)]
pub(crate) struct StuckAt(Weak<Mutex<Vec<Turn>>>);

impl Stuck {
    /// Keeps a turn taken until the wait is over, so that no second thread is lost to the same volume.
    pub(crate) fn keep(&self, turn: Turn) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(turn);
    }

    /// To look later.
    pub(crate) fn at(&self) -> StuckAt {
        StuckAt(Arc::downgrade(&self.0))
    }
}

impl StuckAt {
    /// The wait, while it goes on.
    pub(crate) fn get(&self) -> Option<Stuck> {
        self.0.upgrade().map(Stuck)
    }
}

/// Does something that can hang with a disk on a thread of its own. After the limit the caller gets an error and the
/// thread is left to the kernel.
pub(crate) async fn blocking<T: Send + 'static>(
    limit: Duration,
    path: &Path,
    action: impl FnOnce(&Path) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let owned = path.to_owned();
    let stuck = Stuck::default();
    let held = stuck.clone();
    let thread = tokio::task::spawn_blocking(move || {
        let result = action(&owned);
        drop(held);
        result
    });
    match tokio::time::timeout(limit, thread).await {
        Ok(Ok(result)) => result,
        Ok(Err(panic)) => Err(Error::io("look at", path, io::Error::other(panic))),
        Err(_) => Err(Error::Hangs { path: path.to_owned(), stuck }),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use topolvm_runtime::InFlight;

    use super::*;

    #[tokio::test]
    async fn a_turn_that_a_hanging_thread_keeps_ends_with_the_thread() {
        let (release, released) = mpsc::channel::<()>();
        let hanging = blocking(Duration::from_millis(1), Path::new("/disk"), move |_| Ok(released.recv()));
        let Err(Error::Hangs { stuck, .. }) = hanging.await else { panic!("it hangs") };
        let in_flight = InFlight::default();
        stuck.keep(in_flight.start("v1").unwrap());
        let at = stuck.at();
        drop(stuck);
        assert!(at.get().is_some());
        assert!(in_flight.start("v1").is_none());
        release.send(()).unwrap();
        while in_flight.start("v1").is_none() {
            std::thread::yield_now();
        }
        assert!(at.get().is_none());
    }
}
