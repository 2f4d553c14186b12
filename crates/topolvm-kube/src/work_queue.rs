//! The work queue of reconcilers: a few objects at a time, none twice at once, each again after a back-off when it
//! failed.
//!
//! kube's `applier` does the same behind a timer, whose whole milliseconds are a tenth of the time in which a volume is
//! made.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::hash::Hash;
use std::pin::pin;
use std::time::Duration;

use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, Stream, StreamExt as _};
use tokio_util::time::{DelayQueue, delay_queue};
use topolvm_runtime::Backoff;

/// Concurrency and back-off of a work queue.
#[derive(Clone, Debug)]
pub struct WorkQueueConfig {
    /// Number of items with the same concurrency key that are reconciled at the same time.
    pub concurrency: usize,
    /// Pauses between the retries of one item.
    pub backoff: Backoff,
}

/// Runs a watch and the work queue that it feeds. An error of the watch ends both at once: the queue would never learn
/// of another change. Otherwise both run to their ends.
pub async fn watch_and_reconcile(
    watch: impl Future<Output = anyhow::Result<()>>,
    reconcile: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    tokio::try_join!(watch, async {
        reconcile.await;
        Ok(())
    })
    .map(drop)
}

/// Calls `reconcile` for each item that `changed` yields, and again if it is yielded while it is reconciled. An item
/// that fails is requeued after a back-off, which is passed to `log_failure`; a change ends the back-off early. When
/// `changed` ends, nothing more is begun, and this returns when all that runs has come to its end.
///
/// Items with the same `concurrency_key` wait for each other, and for no others.
pub async fn reconcile_changes<K, C, F, E>(
    changed: impl Stream<Item = K>,
    config: WorkQueueConfig,
    concurrency_key: impl Fn(&K) -> C,
    reconcile: impl Fn(K) -> F,
    log_failure: impl Fn(&K, &E, Duration),
) where
    K: Clone + Eq + Hash,
    C: Clone + Eq + Hash,
    F: Future<Output = Result<(), E>>,
{
    let mut queue = WorkQueue::new(config, concurrency_key);
    let mut running = FuturesUnordered::new();
    // What is known to have changed is gathered before the work on any of it begins
    let mut changed = pin!(changed.ready_chunks(64));
    loop {
        while let Some(item) = queue.start_next() {
            running.push(reconcile(item.clone()).map(|result| (item, result)));
        }
        tokio::select! {
            biased;
            items = changed.next() => match items {
                Some(items) => items.into_iter().for_each(|item| queue.add(item)),
                None => break,
            },
            Some((item, result)) = running.next() => match result {
                Ok(()) => queue.finish(item),
                Err(error) => {
                    let pause = queue.retry(item.clone());
                    log_failure(&item, &error, pause);
                }
            },
            Some(elapsed) = queue.delayed.next() => queue.enqueue(elapsed.into_inner()),
        }
    }
    running.for_each(|_| std::future::ready(())).await;
}

/// Items to reconcile, and the failures of those that were tried.
struct WorkQueue<K, C, F> {
    config: WorkQueueConfig,
    concurrency_key: F,
    groups: HashMap<C, Group<K>>,
    states: HashMap<K, State<C>>,
    delayed: DelayQueue<K>,
    failures: HashMap<K, Backoff>,
}

/// Items with the same concurrency key. A group exists as long as it has any.
struct Group<K> {
    queued: VecDeque<K>,
    running: usize,
}

/// The state of an item for which something is to be done.
enum State<C> {
    Queued,
    Running { concurrency_key: C, is_changed: bool },
    Delayed(delay_queue::Key),
}

impl<K, C, F> WorkQueue<K, C, F>
where
    K: Clone + Eq + Hash,
    C: Clone + Eq + Hash,
    F: Fn(&K) -> C,
{
    fn new(config: WorkQueueConfig, concurrency_key: F) -> Self {
        let (groups, states, failures) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { config, concurrency_key, groups, states, delayed: DelayQueue::new(), failures }
    }

    /// Adds an item that has changed.
    fn add(&mut self, item: K) {
        match self.states.get_mut(&item) {
            Some(State::Queued) => {}
            Some(State::Running { is_changed, .. }) => *is_changed = true,
            Some(State::Delayed(delay)) => {
                self.delayed.remove(delay);
                self.enqueue(item);
            }
            None => self.enqueue(item),
        }
    }

    fn enqueue(&mut self, item: K) {
        self.states.insert(item.clone(), State::Queued);
        let key = (self.concurrency_key)(&item);
        let group = self.groups.entry(key).or_insert_with(|| Group { queued: VecDeque::new(), running: 0 });
        group.queued.push_back(item);
    }

    /// Takes an item out that may be reconciled now.
    fn start_next(&mut self) -> Option<K> {
        let may_start = |group: &Group<K>| group.running < self.config.concurrency && !group.queued.is_empty();
        let (key, group) = self.groups.iter_mut().find(|(_, group)| may_start(group))?;
        let item = group.queued.pop_front()?;
        group.running += 1;
        self.states.insert(item.clone(), State::Running { concurrency_key: key.clone(), is_changed: false });
        Some(item)
    }

    /// Lets an item go that was reconciled, unless it has changed meanwhile.
    fn finish(&mut self, item: K) {
        self.failures.remove(&item);
        if self.stop(&item) {
            self.enqueue(item);
        }
    }

    /// Requeues an item that has failed. Returns the time until its next try, which is none when it has changed
    /// meanwhile.
    fn retry(&mut self, item: K) -> Duration {
        let pause = self.failures.entry(item.clone()).or_insert_with(|| self.config.backoff.clone()).fail();
        if self.stop(&item) {
            self.enqueue(item);
            return Duration::ZERO;
        }
        let delay = self.delayed.insert(item.clone(), pause);
        self.states.insert(item, State::Delayed(delay));
        pause
    }

    /// Counts an item as no longer running, and returns whether it has changed meanwhile.
    fn stop(&mut self, item: &K) -> bool {
        let Some(State::Running { concurrency_key, is_changed }) = self.states.remove(item) else { return false };
        if let Entry::Occupied(mut entry) = self.groups.entry(concurrency_key) {
            entry.get_mut().running -= 1;
            if entry.get().running == 0 && entry.get().queued.is_empty() {
                entry.remove();
            }
        }
        is_changed
    }
}

#[cfg(test)]
mod tests;
