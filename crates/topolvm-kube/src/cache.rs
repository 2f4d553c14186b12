//! A cache of watched objects, or of what is kept of each, and waiting for its first list.
//!
//! The keys of kube's reflector store take about 400 bytes for each object, and it holds everything twice while another
//! list replaces the first. Here the objects are their own keys, and those that a list shows unchanged are shared.

use std::fmt::Debug;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;

use hashbrown::HashTable;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::core::{ObjectMeta, PartialObjectMeta};
use kube::runtime::reflector::{Lookup, ObjectRef};
use kube::runtime::watcher::Event;
use parking_lot::RwLock;
use tokio::sync::watch;
use topolvm_api::LogicalVolume;

/// An object that can be cached, or what is kept of one.
pub trait Cached: Clone + Debug + Send + Sync + 'static {
    /// Returns namespace and name of the object; the namespace is empty for an object without one.
    fn key(&self) -> (&str, &str);

    /// Returns whether both are the same in all that is kept.
    fn is_unchanged(&self, other: &Self) -> bool;
}

impl Cached for LogicalVolume {
    fn key(&self) -> (&str, &str) {
        key_of(&self.metadata)
    }

    fn is_unchanged(&self, other: &Self) -> bool {
        self == other
    }
}

impl Cached for StorageClass {
    fn key(&self) -> (&str, &str) {
        key_of(&self.metadata)
    }

    fn is_unchanged(&self, other: &Self) -> bool {
        self == other
    }
}

impl<K: Clone + Debug + Send + Sync + 'static> Cached for PartialObjectMeta<K> {
    fn key(&self) -> (&str, &str) {
        key_of(&self.metadata)
    }

    fn is_unchanged(&self, other: &Self) -> bool {
        self.metadata == other.metadata
    }
}

fn key_of(metadata: &ObjectMeta) -> (&str, &str) {
    (metadata.namespace.as_deref().unwrap_or_default(), metadata.name.as_deref().unwrap_or_default())
}

/// Reads the cached objects. Clones share them.
#[derive(Clone, Debug)]
pub struct Cache<T: Cached> {
    objects: Arc<RwLock<Objects<T>>>,
    /// True after all objects have been listed once.
    listed: watch::Receiver<bool>,
}

/// Keeps a cache up to date. Each watch has its own writer.
#[derive(Debug)]
pub struct CacheWriter<T: Cached> {
    objects: Arc<RwLock<Objects<T>>>,
    /// The objects that a list which has not ended has named so far.
    listing: Objects<T>,
    listed: watch::Sender<bool>,
}

/// Objects by namespace and name.
#[derive(Debug)]
struct Objects<T> {
    table: HashTable<Arc<T>>,
    hasher: RandomState,
}

impl<T> Default for Objects<T> {
    fn default() -> Self {
        Self { table: HashTable::new(), hasher: RandomState::new() }
    }
}

impl<T: Cached> Objects<T> {
    fn get(&self, key: (&str, &str)) -> Option<&Arc<T>> {
        self.table.find(self.hasher.hash_one(key), |object| object.key() == key)
    }

    fn insert(&mut self, object: Arc<T>) {
        self.remove(object.key());
        let hasher = &self.hasher;
        self.table.insert_unique(hasher.hash_one(object.key()), object, |object| hasher.hash_one(object.key()));
    }

    fn remove(&mut self, key: (&str, &str)) {
        if let Ok(entry) = self.table.find_entry(self.hasher.hash_one(key), |object| object.key() == key) {
            entry.remove();
        }
    }
}

impl<T: Cached> CacheWriter<T> {
    /// Returns a reader of the cache.
    #[must_use]
    pub fn as_reader(&self) -> Cache<T> {
        Cache { objects: Arc::clone(&self.objects), listed: self.listed.subscribe() }
    }

    /// Applies an event of the watch. A list replaces all objects when it is complete. What is cached is a clone, which
    /// has no spare capacity.
    pub fn apply(&mut self, event: &Event<T>) {
        match event {
            Event::Init => self.listing = Objects::default(),
            Event::InitApply(object) => {
                let known = self.objects.read().get(object.key()).filter(|known| known.is_unchanged(object)).cloned();
                self.listing.insert(known.unwrap_or_else(|| Arc::new(object.clone())));
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut self.listing);
                let before = std::mem::replace(&mut *self.objects.write(), listed);
                // Readers need not wait until all are dropped
                drop(before);
                self.listed.send_replace(true);
            }
            Event::Apply(object) => self.objects.write().insert(Arc::new(object.clone())),
            Event::Delete(object) => self.objects.write().remove(object.key()),
        }
    }
}

impl<T: Cached> Default for CacheWriter<T> {
    fn default() -> Self {
        Self { objects: Arc::default(), listing: Objects::default(), listed: watch::Sender::default() }
    }
}

impl<T: Cached> Cache<T> {
    /// Waits until all objects have been listed once; `false` when the watch ends before.
    pub async fn wait_until_listed(&self) -> bool {
        self.listed().wait_for(|listed| *listed).await.is_ok()
    }

    /// Returns what becomes true when all objects have been listed once.
    #[must_use]
    pub fn listed(&self) -> watch::Receiver<bool> {
        self.listed.clone()
    }

    /// Returns whether all objects have been listed once.
    #[must_use]
    pub fn is_listed(&self) -> bool {
        *self.listed.borrow()
    }

    /// Returns what is kept of the object with this namespace and name.
    #[must_use]
    pub fn get_by_name(&self, namespace: &str, name: &str) -> Option<Arc<T>> {
        self.objects.read().get((namespace, name)).cloned()
    }

    /// Returns one for which `is_wanted` is true.
    #[must_use]
    pub fn find(&self, is_wanted: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        self.objects.read().table.iter().find(|object| is_wanted(object)).cloned()
    }

    /// Returns all, in no order.
    #[must_use]
    pub fn state(&self) -> Vec<Arc<T>> {
        self.objects.read().table.iter().cloned().collect()
    }
}

impl<T: Cached + Lookup> Cache<T> {
    /// Returns an object.
    #[must_use]
    pub fn get(&self, object: &ObjectRef<T>) -> Option<Arc<T>> {
        self.get_by_name(object.namespace.as_deref().unwrap_or_default(), &object.name)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use topolvm_testkit::fixtures::logical_volume;

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

    #[test]
    fn cache_shares_objects_that_another_list_shows_unchanged() {
        let mut writer = CacheWriter::<LogicalVolume>::default();
        let cache = writer.as_reader();
        let get = |name: &str| cache.get_by_name("", name);
        let sized = |name: &str, size: &str| Event::InitApply(logical_volume(name).sized(size).build());
        for event in [Event::Init, sized("a", "1Gi"), sized("b", "1Gi"), sized("c", "1Gi"), Event::InitDone] {
            writer.apply(&event);
        }
        let (a, b) = (get("a").unwrap(), get("b").unwrap());
        for event in [Event::Init, sized("a", "1Gi"), sized("b", "2Gi")] {
            writer.apply(&event);
            assert_eq!((cache.state().len(), get("b").unwrap().spec.size.0.clone()), (3, "1Gi".to_owned()));
        }
        writer.apply(&Event::InitDone);
        assert!(Arc::ptr_eq(&a, &get("a").unwrap()) && !Arc::ptr_eq(&b, &get("b").unwrap()));
        assert_eq!((get("b").unwrap().spec.size.0.as_str(), get("c")), ("2Gi", None));
    }

    #[test]
    fn cache_keeps_one_object_of_each_name() {
        let mut writer = CacheWriter::<LogicalVolume>::default();
        let cache = writer.as_reader();
        for number in 0..100 {
            let name = format!("pvc-{}", number % 10);
            writer.apply(&Event::Apply(logical_volume(&name).sized(&format!("{number}Gi")).build()));
        }
        assert_eq!(cache.state().len(), 10);
        assert_eq!(cache.get_by_name("", "pvc-3").unwrap().spec.size.0, "93Gi");
        writer.apply(&Event::Delete(logical_volume("pvc-3").build()));
        assert_eq!((cache.state().len(), cache.get_by_name("", "pvc-3")), (9, None));
        assert!(cache.find(|volume| volume.name() == "pvc-4").is_some());
    }
}
