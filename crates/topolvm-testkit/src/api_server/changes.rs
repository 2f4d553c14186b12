//! Subscriptions to writes, for fake agents, and waiting for the state of an object, for tests.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::Value;
use tokio::sync::watch;

use super::ApiServer;
use super::state::Shared;
use super::store::collection;

/// A write to an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The object was created.
    Added(Value),
    /// The object was changed.
    Modified(Value),
    /// The object was deleted; this is its last state.
    Deleted(Value),
}

impl Change {
    /// Returns the object that was created, changed or deleted.
    pub fn object(&self) -> &Value {
        match self {
            Self::Added(object) | Self::Modified(object) | Self::Deleted(object) => object,
        }
    }
}

/// A subscription to the writes of one resource; none is left out.
#[derive(Debug)]
pub struct Changes {
    shared: Arc<Shared>,
    signal: watch::Receiver<u64>,
    resource: String,
    place: usize,
    pending: VecDeque<Change>,
}

impl Changes {
    /// Waits for the next write.
    pub async fn next(&mut self) -> Change {
        loop {
            if let Some(change) = self.pending.pop_front() {
                return change;
            }
            self.signal.mark_unchanged();
            self.read();
            if self.pending.is_empty() {
                // The sender is part of `shared`, so that it cannot have gone
                drop(self.signal.changed().await);
            }
        }
    }

    fn read(&mut self) {
        let state = self.shared.lock();
        let kinds = state.kinds.iter().filter(|kind| kind.has_name(&self.resource));
        let subscribed: Vec<_> = kinds.map(collection).collect();
        for revision in state.store.history_from(self.place) {
            if !subscribed.contains(&revision.collection) {
                continue;
            }
            self.pending.push_back(match (&revision.before, &revision.after) {
                (None, Some(after)) => Change::Added(Value::clone(after)),
                (Some(_), Some(after)) => Change::Modified(Value::clone(after)),
                (Some(before), None) => Change::Deleted(Value::clone(before)),
                (None, None) => continue,
            });
        }
        self.place = state.store.end_of_history();
    }
}

impl ApiServer {
    /// Subscribes to the writes of a resource from now on. A fake agent reads [`ApiServer::list_json`] after
    /// subscribing, so that it misses nothing.
    pub fn subscribe(&self, resource: &str) -> Changes {
        let place = self.shared.lock().store.end_of_history();
        Changes {
            shared: Arc::clone(&self.shared),
            signal: self.shared.signal.subscribe(),
            resource: resource.to_owned(),
            place,
            pending: VecDeque::new(),
        }
    }

    /// Waits until `found` returns a value for the state of an object (`None` while it does not exist), and returns
    /// that value.
    pub async fn until<T>(
        &self,
        resource: &str,
        namespace: &str,
        name: &str,
        mut found: impl FnMut(Option<&Value>) -> Option<T>,
    ) -> T {
        self.wait_for(|| found(self.get_json(resource, namespace, name).as_ref())).await
    }

    /// Waits until at least `n` requests of this verb and resource came in.
    pub async fn wait_for_requests(&self, verb: &str, resource: &str, n: usize) {
        self.wait_for(|| (self.count(verb, resource) >= n).then_some(())).await;
    }

    async fn wait_for<T>(&self, mut check: impl FnMut() -> Option<T>) -> T {
        let mut signal = self.shared.signal.subscribe();
        loop {
            signal.mark_unchanged();
            if let Some(found) = check() {
                return found;
            }
            // The sender is part of `self`, so that it cannot have gone
            drop(signal.changed().await);
        }
    }
}
