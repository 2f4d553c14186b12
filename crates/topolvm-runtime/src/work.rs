//! Works through things that change: a few at a time, none twice at once, each again after a pause when it failed.
//!
//! kube's `applier` does the same behind a timer, whose whole milliseconds are a tenth of the time in which a volume is made.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::hash::Hash;
use std::pin::pin;
use std::time::Duration;

use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, Stream, StreamExt as _};
use tokio_util::time::{DelayQueue, delay_queue};

use crate::Backoff;

/// How the work is done.
#[derive(Clone, Debug)]
pub struct Pace {
    /// How many things are worked on at the same time.
    pub concurrency: usize,
    /// Pauses between tries for one thing.
    pub retry: Backoff,
}

/// Calls `step` for each thing that `changed` names, and again when it is named while it is worked on. A thing whose step fails is told
/// to `failed` with the pause until the next try; a change ends the pause early. When `changed` ends, nothing more is begun, and this
/// returns when all that runs has come to its end.
pub async fn work_through<K, F, E>(
    changed: impl Stream<Item = K>,
    pace: Pace,
    step: impl Fn(K) -> F,
    failed: impl Fn(&K, &E, Duration),
) where
    K: Clone + Eq + Hash,
    F: Future<Output = Result<(), E>>,
{
    let mut queue = Queue::<K>::new(pace.retry);
    let mut at_work = FuturesUnordered::new();
    // What is known to have changed is gathered before the work on any of it begins
    let mut changed = pin!(changed.ready_chunks(64));
    loop {
        while at_work.len() < pace.concurrency
            && let Some(key) = queue.begin_next()
        {
            at_work.push(step(key.clone()).map(|result| (key, result)));
        }
        tokio::select! {
            biased;
            keys = changed.next() => match keys {
                Some(keys) => keys.into_iter().for_each(|key| queue.change(key)),
                None => break,
            },
            Some((key, result)) = at_work.next() => match result {
                Ok(()) => queue.succeed(key),
                Err(error) => {
                    let pause = queue.fail(key.clone());
                    failed(&key, &error, pause);
                }
            },
            Some(pause) = queue.paused.next() => queue.make_due(pause.into_inner()),
        }
    }
    at_work.for_each(|_| std::future::ready(())).await;
}

/// What is to be done, and the failures of what was tried.
struct Queue<K> {
    places: HashMap<K, Place>,
    due: VecDeque<K>,
    paused: DelayQueue<K>,
    fresh: Backoff,
    failures: HashMap<K, Backoff>,
}

/// Where a thing is for which something is to be done.
enum Place {
    Due,
    AtWork { is_changed: bool },
    Paused(delay_queue::Key),
}

impl<K: Clone + Eq + Hash> Queue<K> {
    fn new(fresh: Backoff) -> Self {
        let (places, failures) = (HashMap::new(), HashMap::new());
        Self { places, due: VecDeque::new(), paused: DelayQueue::new(), fresh, failures }
    }

    /// There is something to do for this one.
    fn change(&mut self, key: K) {
        match self.places.get_mut(&key) {
            Some(Place::Due) => {}
            Some(Place::AtWork { is_changed }) => *is_changed = true,
            Some(Place::Paused(pause)) => {
                self.paused.remove(pause);
                self.make_due(key);
            }
            None => self.make_due(key),
        }
    }

    fn make_due(&mut self, key: K) {
        self.places.insert(key.clone(), Place::Due);
        self.due.push_back(key);
    }

    fn begin_next(&mut self) -> Option<K> {
        let key = self.due.pop_front()?;
        self.places.insert(key.clone(), Place::AtWork { is_changed: false });
        Some(key)
    }

    fn succeed(&mut self, key: K) {
        self.failures.remove(&key);
        if self.leave_work(&key) {
            self.make_due(key);
        }
    }

    /// Returns the time until the next try, which is none when the thing has changed meanwhile.
    fn fail(&mut self, key: K) -> Duration {
        let pause = self.failures.entry(key.clone()).or_insert_with(|| self.fresh.clone()).fail();
        if self.leave_work(&key) {
            self.make_due(key);
            return Duration::ZERO;
        }
        let timer = self.paused.insert(key.clone(), pause);
        self.places.insert(key, Place::Paused(timer));
        pause
    }

    /// Whether the thing has changed while it was worked on.
    fn leave_work(&mut self, key: &K) -> bool {
        matches!(self.places.remove(key), Some(Place::AtWork { is_changed: true }))
    }
}

#[cfg(test)]
mod tests;
