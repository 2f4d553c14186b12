//! A cache of watched objects: kube's reflector store, and waiting for its first list.

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::Arc;

use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{Lookup, ObjectRef, Store};
use kube::runtime::watcher::Event;
use tokio::sync::watch;

/// A kind of object that can be cached.
pub trait Cached: Lookup<DynamicType: Eq + Hash + Clone + Debug> + Clone + Debug + 'static {}

impl<K: Lookup<DynamicType: Eq + Hash + Clone + Debug> + Clone + Debug + 'static> Cached for K {}

/// Reads the cached objects. Clones share them.
#[derive(Clone, Debug)]
pub struct Cache<K: Cached> {
    store: Store<K>,
    /// True after all objects have been listed once. kube's store reports that, too, but wakes only the last waiter.
    listed: watch::Receiver<bool>,
}

/// Keeps a cache up to date. Each watch has its own writer.
#[derive(Debug)]
pub struct CacheWriter<K: Cached> {
    store: Writer<K>,
    listed: watch::Sender<bool>,
}

impl<K: Cached> CacheWriter<K> {
    /// Returns a reader of the cache.
    #[must_use]
    pub fn as_reader(&self) -> Cache<K> {
        Cache { store: self.store.as_reader(), listed: self.listed.subscribe() }
    }

    /// Applies an event of the watch. A list replaces all objects when it is complete.
    pub fn apply(&mut self, event: &Event<K>) {
        self.store.apply_watcher_event(event);
        if matches!(event, Event::InitDone) {
            self.listed.send_replace(true);
        }
    }
}

impl<K: Cached> Default for CacheWriter<K>
where
    K::DynamicType: Default,
{
    fn default() -> Self {
        Self { store: Writer::default(), listed: watch::Sender::default() }
    }
}

impl<K: Cached> Cache<K> {
    /// Waits until all objects have been listed once; `false` when the watch ends before.
    pub async fn wait_until_listed(&self) -> bool {
        self.listed.clone().wait_for(|listed| *listed).await.is_ok()
    }

    /// Returns whether all objects have been listed once.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        *self.listed.borrow()
    }

    /// Returns an object.
    #[must_use]
    pub fn get(&self, object: &ObjectRef<K>) -> Option<Arc<K>> {
        self.store.get(object)
    }

    /// Returns an object for which `is_wanted` is true.
    #[must_use]
    pub fn find(&self, is_wanted: impl Fn(&K) -> bool) -> Option<Arc<K>> {
        self.store.find(is_wanted)
    }

    /// Returns all objects, in no order.
    #[must_use]
    pub fn state(&self) -> Vec<Arc<K>> {
        self.store.state()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use topolvm_api::LogicalVolume;

    use super::*;

    #[tokio::test]
    async fn all_who_wait_for_the_first_list_go_on_when_it_is_there() {
        let mut writer = CacheWriter::<LogicalVolume>::default();
        let cache = writer.as_reader();
        let listing = async {
            // The others wait by now
            tokio::task::yield_now().await;
            assert!(!cache.is_listed());
            writer.apply(&Event::InitDone);
        };
        let waiting = tokio::time::timeout(Duration::from_secs(5), async {
            tokio::join!(cache.wait_until_listed(), cache.wait_until_listed(), listing)
        });
        assert_eq!(waiting.await.unwrap(), (true, true, ()));
    }

    #[tokio::test]
    async fn cache_wait_ends_when_the_watch_ends_before_the_first_list() {
        let cache = CacheWriter::<LogicalVolume>::default().as_reader();
        assert!(!cache.wait_until_listed().await);
        assert!(!cache.is_listed());
    }
}
