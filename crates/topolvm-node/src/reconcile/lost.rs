//! Lost volumes: LVs that were removed or renamed by hand.

use std::collections::HashMap;

use parking_lot::Mutex;
use topolvm_api::LogicalVolume;

/// LVs that are lost or exist again, by the UID of their objects, where the objects may not report it yet.
#[derive(Debug, Default)]
pub(super) struct LostVolumes(Mutex<HashMap<String, bool>>);

impl LostVolumes {
    /// Stores whether an LV is lost, and returns whether that has changed.
    pub(super) fn set(&self, volume: &LogicalVolume, is_lost: bool) -> bool {
        let mut lost = self.0.lock();
        let is_news = lost.get(volume.uid()).copied().unwrap_or_else(|| volume.is_lost()) != is_lost;
        if is_lost || volume.is_lost() {
            lost.insert(volume.uid().to_owned(), is_lost);
        } else {
            lost.remove(volume.uid());
        }
        is_news
    }

    /// Returns whether the LV of an object is lost. What an earlier process has written to the object counts until it
    /// is found otherwise.
    pub(super) fn contains(&self, volume: &LogicalVolume) -> bool {
        self.0.lock().get(volume.uid()).copied().unwrap_or_else(|| volume.is_lost())
    }

    /// Forgets an object that is gone.
    pub(super) fn forget(&self, volume: &LogicalVolume) {
        self.0.lock().remove(volume.uid());
    }
}
