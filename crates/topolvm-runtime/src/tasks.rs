//! Supervised tasks: nothing runs detached, a task that ends is noticed, and the process waits for what must finish.

use std::sync::Arc;

use anyhow::Context as _;
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error_chain;

/// Name and result of a task that has ended.
type Ended = (&'static str, anyhow::Result<()>);

/// The tasks of a process. Clones share the same set.
#[derive(Clone, Debug)]
pub struct Tasks {
    shutdown: CancellationToken,
    tracker: TaskTracker,
    ended: mpsc::UnboundedSender<Ended>,
    endings: Arc<Mutex<mpsc::UnboundedReceiver<Ended>>>,
}

impl Tasks {
    /// An empty set that cancels `shutdown` when its first task ends.
    pub fn new(shutdown: CancellationToken) -> Self {
        let (ended, endings) = mpsc::unbounded_channel();
        Self { shutdown, tracker: TaskTracker::new(), ended, endings: Arc::new(Mutex::new(endings)) }
    }

    /// Starts a task that lasts as long as the process: it ends when `shutdown` is cancelled or when it cannot
    /// continue, and the process then ends with it. Its name precedes its error.
    pub fn spawn(&self, name: &'static str, future: impl Future<Output = anyhow::Result<()>> + Send + 'static) {
        let (task, ended) = (self.tracker.spawn(future), self.ended.clone());
        self.tracker.spawn(async move {
            // In tests a panic unwinds to here; elsewhere it ends the process
            let result = task.await.unwrap_or_else(|panic| Err(panic.into()));
            // The receiver is dropped only when the end of the process is not awaited any more
            drop(ended.send((name, result)));
        });
    }

    /// Starts a piece of work that must run to its end even if its result is not awaited any more; the process does not
    /// end before it.
    pub fn finish<T: Send + 'static>(&self, future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.tracker.spawn(future)
    }

    /// Waits until a task ends or the shutdown begins, then lets everything end. Returns the first error.
    pub async fn wait(self) -> anyhow::Result<()> {
        let mut endings = self.endings.lock().await;
        let first = tokio::select! {
            ended = endings.recv() => ended,
            () = self.shutdown.cancelled() => None,
        };
        let mut result = first.map_or(Ok(()), |ended| self.check(ended));
        self.shutdown.cancel();
        self.tracker.close();
        self.tracker.wait().await;
        while let Ok(ended) = endings.try_recv() {
            let ended = self.check(ended);
            result = result.and(ended);
        }
        result
    }

    /// Returns how a task ended, and logs it; a long-lasting task may end on its own only after the shutdown began.
    fn check(&self, (name, result): Ended) -> anyhow::Result<()> {
        let result = match result {
            Ok(()) if self.shutdown.is_cancelled() => Ok(()),
            Ok(()) => Err(anyhow::anyhow!("task {name:?} ended unexpectedly")),
            Err(error) => Err(error).context(name),
        };
        if let Err(error) = &result {
            tracing::error!(error = error_chain(&**error), "task failed");
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_fails_ends_the_others_and_gives_its_name() {
        let shutdown = CancellationToken::new();
        let tasks = Tasks::new(shutdown.clone());
        let token = shutdown.clone();
        tasks.spawn("patient", async move {
            token.cancelled().await;
            Ok(())
        });
        tasks.spawn("hasty", async { anyhow::bail!("no disk") });
        let error = tasks.wait().await.unwrap_err();
        assert_eq!(format!("{error:#}"), "hasty: no disk");
        assert!(shutdown.is_cancelled());
    }

    #[tokio::test]
    async fn task_end_is_an_error_unless_shutdown_has_begun() {
        let tasks = Tasks::new(CancellationToken::new());
        tasks.spawn("watch", async { Ok(()) });
        let error = tasks.wait().await.unwrap_err();
        assert_eq!(format!("{error:#}"), "task \"watch\" ended unexpectedly");

        let shutdown = CancellationToken::new();
        shutdown.cancel();
        let tasks = Tasks::new(shutdown);
        tasks.spawn("watch", async { Ok(()) });
        assert!(tasks.wait().await.is_ok());
    }

    #[tokio::test]
    async fn a_panic_is_an_error_with_its_message() {
        let tasks = Tasks::new(CancellationToken::new());
        tasks.spawn("clumsy", async { panic!("oops") });
        let error = format!("{:#}", tasks.wait().await.unwrap_err());
        assert!(error.starts_with("clumsy: ") && error.contains("panicked") && error.contains("oops"), "{error}");
    }

    #[tokio::test]
    async fn work_that_must_finish_finishes_after_its_caller_has_gone() {
        let shutdown = CancellationToken::new();
        let tasks = Tasks::new(shutdown.clone());
        let (release, released) = tokio::sync::oneshot::channel::<()>();
        let (done, is_done) = tokio::sync::oneshot::channel();
        drop(tasks.finish(async move {
            released.await.unwrap();
            done.send(()).unwrap();
        }));
        shutdown.cancel();
        let (waited, ()) = tokio::join!(tasks.wait(), async { release.send(()).unwrap() });
        waited.unwrap();
        is_done.await.unwrap();
    }
}
