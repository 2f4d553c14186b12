//! Time stands still in these tests until everybody waits for it.

use std::cell::{Cell, RefCell};

use rstest::rstest;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::*;

const CONFIG: WorkQueueConfig =
    WorkQueueConfig { concurrency: 2, backoff: Backoff::new(Duration::from_millis(100), Duration::from_millis(300)) };
const LONG: Duration = Duration::from_secs(1);

/// Steps that were done, with the milliseconds at which each began and ended, and the outcome of those to come.
struct Log {
    start: Instant,
    spans: RefCell<Vec<(&'static str, u128, u128)>>,
    pauses: RefCell<Vec<u128>>,
    /// Steps that are still to fail.
    failing: Cell<u32>,
    takes: Duration,
}

impl Log {
    fn new(failing: u32, takes: Duration) -> Self {
        let (spans, pauses) = (RefCell::default(), RefCell::default());
        Self { start: Instant::now(), spans, pauses, failing: Cell::new(failing), takes }
    }

    fn now(&self) -> u128 {
        self.start.elapsed().as_millis()
    }

    async fn step(&self, key: &'static str) -> Result<(), &'static str> {
        let begin = self.now();
        if !self.takes.is_zero() {
            sleep(self.takes).await;
        }
        self.spans.borrow_mut().push((key, begin, self.now()));
        match self.failing.get() {
            0 => Ok(()),
            left => {
                self.failing.set(left - 1);
                Err("not yet")
            }
        }
    }

    /// Works through what `changes` sends.
    async fn work(&self, changes: impl AsyncFnOnce(mpsc::UnboundedSender<&'static str>)) {
        let (sender, receiver) = mpsc::unbounded_channel();
        let failed = |_: &_, _: &_, pause: Duration| self.pauses.borrow_mut().push(pause.as_millis());
        let first_letter = |key: &&'static str| key.chars().next();
        let working = reconcile_changes(
            UnboundedReceiverStream::new(receiver),
            CONFIG,
            first_letter,
            |key| self.step(key),
            failed,
        );
        tokio::join!(working, changes(sender));
    }

    fn spans(&self) -> Vec<(&'static str, u128, u128)> {
        self.spans.borrow().clone()
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_is_worked_on_at_once_and_without_a_timer() {
    let log = Log::new(0, Duration::ZERO);
    log.work(async |changed| {
        changed.send("a").unwrap();
        sleep(Duration::from_millis(7)).await;
        changed.send("a").unwrap();
        sleep(LONG).await;
    })
    .await;
    assert_eq!(log.spans(), [("a", 0, 0), ("a", 7, 7)]);
}

#[tokio::test(start_paused = true)]
async fn a_few_items_are_worked_on_at_once_in_their_order() {
    let log = Log::new(0, Duration::from_millis(10));
    log.work(async |changed| {
        for key in ["a1", "a2", "a3", "a4", "a1"] {
            changed.send(key).unwrap();
        }
        sleep(LONG).await;
    })
    .await;
    assert_eq!(log.spans(), [("a1", 0, 10), ("a2", 0, 10), ("a3", 10, 20), ("a4", 10, 20)]);
}

#[tokio::test(start_paused = true)]
async fn nothing_waits_for_items_with_another_concurrency_key() {
    let log = Log::new(0, Duration::from_millis(10));
    log.work(async |changed| {
        for key in ["a1", "a2", "a3", "a4", "a5"] {
            changed.send(key).unwrap();
        }
        sleep(Duration::from_millis(5)).await;
        changed.send("b1").unwrap();
        sleep(LONG).await;
    })
    .await;
    let spans = [("a1", 0, 10), ("a2", 0, 10), ("b1", 5, 15), ("a3", 10, 20), ("a4", 10, 20), ("a5", 20, 30)];
    assert_eq!(log.spans(), spans);
}

#[tokio::test(start_paused = true)]
async fn work_queue_runs_a_key_once_at_a_time_and_keeps_changes() {
    let log = Log::new(0, Duration::from_millis(10));
    log.work(async |changed| {
        changed.send("a").unwrap();
        sleep(Duration::from_millis(5)).await;
        changed.send("a").unwrap();
        changed.send("a").unwrap();
        sleep(LONG).await;
    })
    .await;
    assert_eq!(log.spans(), [("a", 0, 10), ("a", 10, 20)]);
}

#[tokio::test(start_paused = true)]
async fn work_queue_retries_with_a_backoff_that_success_resets() {
    let log = Log::new(4, Duration::ZERO);
    log.work(async |changed| {
        changed.send("a").unwrap();
        sleep(Duration::from_secs(10)).await;
        log.failing.set(1);
        changed.send("a").unwrap();
        sleep(LONG).await;
    })
    .await;
    assert_eq!(*log.pauses.borrow(), [100, 200, 300, 300, 100]);
    let begins: Vec<_> = log.spans().iter().map(|(_, begin, _)| *begin / 10 * 10).collect();
    assert_eq!(begins, [0, 100, 300, 600, 900, 10_000, 10_100]);
}

#[rstest]
#[case::while_it_pauses(50, [("a", 0, 10), ("a", 50, 60)], [100])]
#[case::while_it_is_worked_on(5, [("a", 0, 10), ("a", 10, 20)], [0])]
#[tokio::test(start_paused = true)]
async fn a_change_ends_the_pause_early(
    #[case] at: u64,
    #[case] spans: [(&'static str, u128, u128); 2],
    #[case] pauses: [u128; 1],
) {
    let log = Log::new(1, Duration::from_millis(10));
    log.work(async |changed| {
        changed.send("a").unwrap();
        sleep(Duration::from_millis(at)).await;
        changed.send("a").unwrap();
        sleep(LONG).await;
    })
    .await;
    assert_eq!(log.spans(), spans);
    assert_eq!(*log.pauses.borrow(), pauses);
}

#[tokio::test(start_paused = true)]
async fn at_the_end_what_runs_ends_and_nothing_more_begins() {
    let log = Log::new(0, Duration::from_millis(10));
    log.work(async |changed| {
        for key in ["a1", "a2", "a3"] {
            changed.send(key).unwrap();
        }
        sleep(Duration::from_millis(1)).await;
    })
    .await;
    assert_eq!(log.spans(), [("a1", 0, 10), ("a2", 0, 10)]);
    assert_eq!(log.now(), 10);
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_watch_ends_the_work_at_once() {
    let watch = async { anyhow::bail!("the stream ended") };
    let ended = tokio::time::timeout(LONG, watch_and_reconcile(watch, std::future::pending())).await;
    assert_eq!(ended.unwrap().unwrap_err().to_string(), "the stream ended");
}

#[tokio::test(start_paused = true)]
async fn reconcile_finishes_running_work_after_the_watch_ends() {
    let is_done = Cell::new(false);
    let work = async {
        sleep(LONG).await;
        is_done.set(true);
    };
    watch_and_reconcile(async { Ok(()) }, work).await.unwrap();
    assert!(is_done.get());
}
