//! Works through things that change: a few at a time, none twice at once, each again after a pause when it failed.
//!
//! kube's `applier` does the same behind a timer, whose whole milliseconds are a tenth of the time in which a volume is made.

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

/// How the work is done.
#[derive(Clone, Debug)]
pub struct Pace {
    /// How many things of one lane are worked on at the same time.
    pub concurrency: usize,
    /// Pauses between tries for one thing.
    pub retry: Backoff,
}

/// Runs a watch and the work that it feeds. An error of the watch ends both at once: nobody would ever tell the work of another change.
/// Otherwise both run to their ends.
pub async fn watch_and_work(
    watch: impl Future<Output = anyhow::Result<()>>,
    work: impl Future<Output = ()>,
) -> anyhow::Result<()> {
    tokio::try_join!(watch, async {
        work.await;
        Ok(())
    })
    .map(drop)
}

/// Calls `step` for each thing that `changed` names, and again when it is named while it is worked on. A thing whose step fails is told
/// to `failed` with the pause until the next try; a change ends the pause early. When `changed` ends, nothing more is begun, and this
/// returns when all that runs has come to its end.
///
/// `lane` tells what a thing may have to wait for: things of one lane wait for each other, and for no others.
pub async fn work_through<K, L, F, E>(
    changed: impl Stream<Item = K>,
    pace: Pace,
    lane: impl Fn(&K) -> L,
    step: impl Fn(K) -> F,
    failed: impl Fn(&K, &E, Duration),
) where
    K: Clone + Eq + Hash,
    L: Clone + Eq + Hash,
    F: Future<Output = Result<(), E>>,
{
    let mut queue = Queue::new(pace, lane);
    let mut at_work = FuturesUnordered::new();
    // What is known to have changed is gathered before the work on any of it begins
    let mut changed = pin!(changed.ready_chunks(64));
    loop {
        while let Some(key) = queue.begin_next() {
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
struct Queue<K, L, F> {
    pace: Pace,
    lane: F,
    lanes: HashMap<L, Lane<K>>,
    places: HashMap<K, Place<L>>,
    paused: DelayQueue<K>,
    failures: HashMap<K, Backoff>,
}

/// Things that wait for each other. It is there for as long as it has any.
struct Lane<K> {
    due: VecDeque<K>,
    at_work: usize,
}

/// Where a thing is for which something is to be done.
enum Place<L> {
    Due,
    AtWork { lane: L, is_changed: bool },
    Paused(delay_queue::Key),
}

impl<K, L, F> Queue<K, L, F>
where
    K: Clone + Eq + Hash,
    L: Clone + Eq + Hash,
    F: Fn(&K) -> L,
{
    fn new(pace: Pace, lane: F) -> Self {
        let (lanes, places, failures) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { pace, lane, lanes, places, paused: DelayQueue::new(), failures }
    }

    /// There is something to do for this one.
    fn change(&mut self, key: K) {
        match self.places.get_mut(&key) {
            Some(Place::Due) => {}
            Some(Place::AtWork { is_changed, .. }) => *is_changed = true,
            Some(Place::Paused(pause)) => {
                self.paused.remove(pause);
                self.make_due(key);
            }
            None => self.make_due(key),
        }
    }

    fn make_due(&mut self, key: K) {
        self.places.insert(key.clone(), Place::Due);
        let lane = self.lanes.entry((self.lane)(&key)).or_insert_with(|| Lane { due: VecDeque::new(), at_work: 0 });
        lane.due.push_back(key);
    }

    fn begin_next(&mut self) -> Option<K> {
        let has_room = |lane: &Lane<K>| lane.at_work < self.pace.concurrency && !lane.due.is_empty();
        let (name, lane) = self.lanes.iter_mut().find(|(_, lane)| has_room(lane))?;
        let key = lane.due.pop_front()?;
        lane.at_work += 1;
        self.places.insert(key.clone(), Place::AtWork { lane: name.clone(), is_changed: false });
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
        let pause = self.failures.entry(key.clone()).or_insert_with(|| self.pace.retry.clone()).fail();
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
        let Some(Place::AtWork { lane, is_changed }) = self.places.remove(key) else { return false };
        if let Entry::Occupied(mut entry) = self.lanes.entry(lane) {
            entry.get_mut().at_work -= 1;
            if entry.get().at_work == 0 && entry.get().due.is_empty() {
                entry.remove();
            }
        }
        is_changed
    }
}

#[cfg(test)]
mod tests;
