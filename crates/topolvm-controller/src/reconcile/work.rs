//! Works through objects, a few at a time, each again after a pause when it failed.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt::Debug;
use std::future::Future;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{FutureExt as _, Stream, StreamExt as _};
use kube::Resource;
use kube::runtime::applier;
use kube::runtime::controller::{Action, Config};
use kube::runtime::reflector::{ObjectRef, Store};

use super::error::Error;

/// How many objects of one kind are worked on at the same time. The API server's own limits should never be felt.
const CONCURRENCY: u16 = 4;
/// The longest pause between two tries for one object.
const LONGEST: Duration = Duration::from_secs(30);

/// Calls `reconcile` for each object that `queue` names, as `store` has it, for as long as the queue lasts. `what` names the kind in the
/// log.
pub(super) async fn work<K, F>(
    what: &'static str,
    store: Store<K>,
    queue: impl Stream<Item = ObjectRef<K>>,
    reconcile: impl Fn(Arc<K>) -> F,
) where
    K: Resource + Clone + 'static,
    K::DynamicType: Debug + Eq + Hash + Clone + Unpin,
    F: Future<Output = Result<(), Error>>,
{
    let failures = Arc::new(Failures::default());
    let step = |object: Arc<K>, failures: Arc<Failures>| {
        let key = key(&*object);
        let reconciling = reconcile(object);
        Box::pin(
            reconciling.map(move |result| result.inspect(|()| failures.forget(&key)).map(|()| Action::await_change())),
        )
    };
    let retry = |object: Arc<K>, error: &Error, failures: Arc<Failures>| {
        let (namespace, name) = key(&*object);
        let pause = failures.next((namespace.clone(), name.clone()));
        tracing::warn!(what, namespace, name, error = chain(error), again_in = ?pause, "cannot reconcile; trying again");
        Action::requeue(pause)
    };
    let queue = queue.map(Ok::<_, Infallible>);
    // What is left to be said by the stream is that an object has gone before its turn
    applier(step, retry, failures, store, queue, Config::default().concurrency(CONCURRENCY))
        .for_each(|_| std::future::ready(()))
        .await;
}

type Key = (String, String);

fn key(object: &impl Resource) -> Key {
    let metadata = object.meta();
    (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}

/// How often each object has failed in a row.
#[derive(Debug, Default)]
struct Failures {
    counts: Mutex<HashMap<Key, u32>>,
}

impl Failures {
    fn next(&self, key: Key) -> Duration {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(key).or_default();
        let pause = Duration::from_millis(200).saturating_mul(2_u32.saturating_pow(*count)).min(LONGEST);
        *count = count.saturating_add(1);
        pause
    }

    fn forget(&self, key: &Key) {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

/// An error with all its causes.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_of_an_object_double_to_half_a_minute_and_begin_anew_after_a_success() {
        let failures = Failures::default();
        let key: Key = ("ns".to_owned(), "a".to_owned());
        let pauses: Vec<_> = (0..9).map(|_| failures.next(key.clone()).as_millis()).collect();
        assert_eq!(pauses, [200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000]);
        failures.forget(&key);
        assert_eq!(failures.next(key), Duration::from_millis(200));
    }
}
