//! What this process wrote last, which the watch may not have shown yet.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use topolvm_api::LogicalVolume;

/// Objects as the API server returned them for our own writes, by UID, until the watch has caught up.
#[derive(Debug, Default)]
pub(super) struct Written {
    objects: Mutex<HashMap<String, Arc<LogicalVolume>>>,
}

impl Written {
    /// Remembers what a write returned.
    pub(super) fn record(&self, mut volume: LogicalVolume) -> Arc<LogicalVolume> {
        volume.metadata.managed_fields = None;
        let volume = Arc::new(volume);
        self.lock().insert(volume.uid().to_owned(), Arc::clone(&volume));
        volume
    }

    /// Forgets an object that is gone.
    pub(super) fn forget(&self, volume: &LogicalVolume) {
        self.lock().remove(volume.uid());
    }

    /// The newer one of what was seen and what was written.
    pub(super) fn latest(&self, seen: Arc<LogicalVolume>) -> Arc<LogicalVolume> {
        let mut objects = self.lock();
        match objects.get(seen.uid()) {
            Some(written) if version(written) > version(&seen) => Arc::clone(written),
            Some(_) => {
                objects.remove(seen.uid());
                seen
            }
            None => seen,
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Arc<LogicalVolume>>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Kubernetes lets resource versions of one object be compared as numbers since 1.35, and they have been numbers for
/// ever. Should one be none, the watch's object is taken.
fn version(volume: &LogicalVolume) -> Option<u128> {
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
    fn an_own_write_counts_until_the_watch_has_caught_up() {
        let written = Written::default();
        written.record(volume("10"));
        assert_eq!(*written.latest(Arc::new(volume("9"))), volume("10"));
        assert_eq!(*written.latest(Arc::new(volume("11"))), volume("11"));
        assert_eq!(*written.latest(Arc::new(volume("9"))), volume("9"));
    }

    #[test]
    fn a_forgotten_object_is_taken_as_the_watch_shows_it() {
        let written = Written::default();
        let ours = written.record(volume("10"));
        written.forget(&ours);
        assert_eq!(*written.latest(Arc::new(volume("9"))), volume("9"));
    }
}
