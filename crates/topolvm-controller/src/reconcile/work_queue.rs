//! The work queue of a controller: reconciles objects, a few at a time, and requeues each with back-off when it failed.

use std::fmt::Debug;
use std::future::Future;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use kube::Resource;
use kube::runtime::reflector::ObjectRef;
use topolvm_kube::{ReconcileError, ReconcileMetrics, WorkQueueConfig, reconcile_changes};
use topolvm_runtime::{Backoff, error_chain};

/// Concurrency and back-off of all controllers.
pub(super) const WORK_QUEUE: WorkQueueConfig = WorkQueueConfig {
    // The API server's own limits should never be felt
    concurrency: 4,
    backoff: Backoff::new(Duration::from_millis(200), Duration::from_secs(30)),
};

/// Calls `reconcile` for each object that `queue` names, as `find` returns it from a cache, for as long as the queue
/// lasts. `controller` is the name in the log and in the metrics.
pub(super) async fn reconcile_all<K, F>(
    controller: &'static str,
    metrics: &ReconcileMetrics,
    find: impl Fn(&ObjectRef<K>) -> Option<Arc<K>>,
    queue: impl Stream<Item = ObjectRef<K>>,
    reconcile: impl Fn(Arc<K>) -> F,
) where
    K: Resource + Clone + Debug + 'static,
    K::DynamicType: Debug + Eq + Hash + Clone,
    F: Future<Output = Result<(), ReconcileError>>,
{
    let reconcile_one = async |object: ObjectRef<K>| match find(&object) {
        Some(object) => metrics.observe(controller, reconcile(object)).await,
        None => Ok(()),
    };
    let failed = |object: &ObjectRef<K>, error: &ReconcileError, pause: Duration| {
        let error = error_chain(error);
        tracing::warn!(controller, object = %object, error, again_in = ?pause, "cannot reconcile; trying again");
    };
    let same_key = |_: &ObjectRef<K>| ();
    reconcile_changes(queue, WORK_QUEUE, same_key, reconcile_one, failed).await;
}
