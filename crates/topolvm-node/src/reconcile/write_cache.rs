//! Cache of objects that this process has written and the watch may not have shown yet.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use topolvm_api::LogicalVolume;

/// Objects as the API server returned them for our own writes, by UID, until the watch has caught up.
#[derive(Debug, Default)]
pub(super) struct WriteCache {
    objects: Mutex<HashMap<String, Arc<LogicalVolume>>>,
}

impl WriteCache {
    /// Stores the object that a write returned.
    pub(super) fn insert(&self, mut volume: LogicalVolume) -> Arc<LogicalVolume> {
        volume.metadata.managed_fields = None;
        let volume = Arc::new(volume);
        self.objects.lock().insert(volume.uid().to_owned(), Arc::clone(&volume));
        volume
    }

    /// Removes an object that is gone.
    pub(super) fn remove(&self, volume: &LogicalVolume) {
        self.objects.lock().remove(volume.uid());
    }

    /// Returns the object as it was written last, if that is newer than this one.
    pub(super) fn last_written(&self, volume: Arc<LogicalVolume>) -> Arc<LogicalVolume> {
        let objects = self.objects.lock();
        let written = objects.get(volume.uid());
        let newer = written.filter(|written| resource_version(written) > resource_version(&volume));
        newer.map_or(volume, Arc::clone)
    }

    /// Returns the newer of the watched and the written object.
    pub(super) fn newest(&self, seen: Arc<LogicalVolume>) -> Arc<LogicalVolume> {
        let mut objects = self.objects.lock();
        match objects.get(seen.uid()) {
            Some(written) if resource_version(written) > resource_version(&seen) => Arc::clone(written),
            Some(_) => {
                objects.remove(seen.uid());
                seen
            }
            None => seen,
        }
    }
}

/// Parses the resource version of an object. Kubernetes lets those of one object be compared as numbers since 1.35,
/// and they have always been numbers. For any other the watched object is taken.
fn resource_version(volume: &LogicalVolume) -> Option<u128> {
    volume.metadata.resource_version.as_ref()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(version: &str) -> LogicalVolume {
        let mut volume = LogicalVolume::default();
        volume.metadata.uid = Some("u".to_owned());
        volume.metadata.resource_version = Some(version.to_owned());
        volume
    }

    #[test]
    fn a_written_object_is_used_until_the_watch_has_caught_up() {
        let cache = WriteCache::default();
        cache.insert(volume("10"));
        assert_eq!(*cache.newest(Arc::new(volume("9"))), volume("10"));
        assert_eq!(*cache.newest(Arc::new(volume("11"))), volume("11"));
        assert_eq!(*cache.newest(Arc::new(volume("9"))), volume("9"));
    }

    #[test]
    fn a_forgotten_object_is_taken_as_the_watch_shows_it() {
        let cache = WriteCache::default();
        let ours = cache.insert(volume("10"));
        cache.remove(&ours);
        assert_eq!(*cache.newest(Arc::new(volume("9"))), volume("9"));
    }
}
