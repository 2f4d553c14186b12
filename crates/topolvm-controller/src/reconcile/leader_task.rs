//! Tasks of the leader that the program adds to the controllers: capabilities that are crates of their own.

use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::runtime::watcher::Event;
use topolvm_kube::{Cache, CachedClaim};

/// A function that takes the events of the watch of claims.
pub(super) type ClaimSubscriber = Box<dyn FnMut(&Event<PersistentVolumeClaim>) + Send>;

/// Starts a task for a term of this replica as the leader. The task is dropped wherever it is when the term ends.
pub(crate) type LeaderTask = Arc<dyn Fn(&mut Term) -> BoxFuture<'static, ()> + Send + Sync>;

/// One term of this replica as the leader, which its tasks share.
pub(crate) struct Term {
    /// The claims that are of this driver or may be.
    pub(crate) claims: Cache<CachedClaim>,
    subscribers: Vec<ClaimSubscriber>,
}

impl Term {
    /// Sends the events of the watch of all claims to `subscriber`, beginning with a list.
    pub(crate) fn subscribe(&mut self, subscriber: impl FnMut(&Event<PersistentVolumeClaim>) + Send + 'static) {
        self.subscribers.push(Box::new(subscriber));
    }
}

/// Starts tasks for a term, which share this cache of claims. Returns them, and their subscribers to events of claims.
pub(super) fn start_all(
    tasks: &[LeaderTask],
    claims: Cache<CachedClaim>,
) -> (Vec<BoxFuture<'static, ()>>, Vec<ClaimSubscriber>) {
    let mut term = Term { claims, subscribers: Vec::new() };
    let started = tasks.iter().map(|start| start(&mut term)).collect();
    (started, term.subscribers)
}
