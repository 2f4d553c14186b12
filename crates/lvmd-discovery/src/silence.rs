//! Disks that do not answer: each blocks one thread, regardless of the number of requests, and callers wait only for a
//! limited time.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use block_device::Number;
use parking_lot::Mutex;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::timeout;

/// The disks for which a thread waits. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct Silence {
    waits: Arc<Mutex<HashSet<Number>>>,
}

impl Silence {
    /// Runs a request to a disk in a thread, which may block indefinitely. Returns `None` if the disk does not answer
    /// within the time limit or has not yet answered an earlier request.
    pub(super) async fn ask<T: Send + 'static>(
        &self,
        disk: Number,
        limit: Duration,
        question: impl FnOnce() -> T + Send + 'static,
    ) -> Option<Result<T, JoinError>> {
        if !self.waits.lock().insert(disk) {
            return None;
        }
        let wait = Wait { disk, waits: Arc::clone(&self.waits) };
        let asking = spawn_blocking(move || {
            let _wait = wait;
            question()
        });
        timeout(limit, asking).await.ok()
    }

    /// Returns whether a thread waits for the disk.
    pub(super) fn is_waiting(&self, disk: Number) -> bool {
        self.waits.lock().contains(&disk)
    }
}

/// The wait for a disk, which ends when this is dropped.
struct Wait {
    disk: Number,
    waits: Arc<Mutex<HashSet<Number>>>,
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.waits.lock().remove(&self.disk);
    }
}

/// Describes the disks that do not answer, if there are any, and the consequences.
pub(super) fn describe<'a>(paths: impl Iterator<Item = &'a str>) -> Option<String> {
    let paths: Vec<_> = paths.collect();
    let text = "check for a broken disk, cable or controller. LVM waits for these disks unless its global_filter \
                excludes them, which delays disk scans and disk additions";
    (!paths.is_empty()).then(|| format!("these disks do not answer: {}; {text}", paths.join(", ")))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const DISK: Number = Number { major: 8, minor: 0 };
    const OTHER: Number = Number { major: 8, minor: 16 };
    const SHORT: Duration = Duration::from_millis(10);
    const LONG: Duration = Duration::from_mins(1);

    #[tokio::test]
    async fn unresponsive_disk_costs_one_thread_and_blocks_no_other_disk() {
        let silence = Silence::default();
        let (answer, answered) = mpsc::channel::<()>();
        let hanging = move || answered.recv().is_ok();
        assert!(silence.ask(DISK, SHORT, hanging).await.is_none());
        assert!(silence.is_waiting(DISK));
        for _ in 0..3 {
            let question = || panic!("a second thread waits for the disk");
            assert!(silence.ask(DISK, LONG, question).await.is_none());
        }
        assert_eq!(silence.ask(OTHER, LONG, || 1).await.unwrap().unwrap(), 1);
        assert!(!silence.is_waiting(OTHER));
        answer.send(()).unwrap();
        while silence.is_waiting(DISK) {
            tokio::task::yield_now().await;
        }
        assert_eq!(silence.ask(DISK, LONG, || 2).await.unwrap().unwrap(), 2);
    }

    #[tokio::test]
    async fn a_question_that_panics_is_an_answer() {
        let silence = Silence::default();
        assert!(silence.ask(DISK, LONG, || panic!("no")).await.unwrap().is_err());
        assert!(!silence.is_waiting(DISK));
    }
}
