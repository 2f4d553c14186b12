//! Works through objects, a few at a time, each again after a pause when it failed.

use std::convert::Infallible;
use std::fmt::Debug;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt as _, Stream, StreamExt as _};
use kube::Resource;
use kube::runtime::applier;
use kube::runtime::controller::{Action, Config};
use kube::runtime::reflector::{ObjectRef, Store};
use topolvm_runtime::{Backoff, Backoffs, error_chain};

use super::error::Error;

/// How many objects of one kind are worked on at the same time. The API server's own limits should never be felt.
const CONCURRENCY: u16 = 4;
/// Pauses between tries for one object.
const RETRY: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));

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
    let failures = Arc::new(Backoffs::new(RETRY));
    let step = |object: Arc<K>, failures: Arc<Backoffs<Key>>| {
        let key = key(&*object);
        let reconciling = reconcile(object);
        Box::pin(
            reconciling.map(move |result| result.inspect(|()| failures.forget(&key)).map(|()| Action::await_change())),
        )
    };
    let retry = |object: Arc<K>, error: &Error, failures: Arc<Backoffs<Key>>| {
        let (namespace, name) = key(&*object);
        let pause = failures.fail((namespace.clone(), name.clone()));
        tracing::warn!(what, namespace, name, error = error_chain(error), again_in = ?pause, "cannot reconcile; trying again");
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
