//! Cache of volumes whose recorded filesystem was missing when they were to be mounted.

use std::collections::HashMap;

use parking_lot::Mutex;

/// Messages about missing filesystems by volume id. Calls about the health of a volume start no process, and read
/// them here.
#[derive(Debug, Default)]
pub(super) struct MissingFilesystems {
    messages: Mutex<HashMap<String, String>>,
}

impl MissingFilesystems {
    /// Stores that the filesystem of a volume is missing.
    pub(super) fn insert(&self, id: &str, message: String) {
        self.messages.lock().insert(id.to_owned(), message);
    }

    /// Removes a volume, whose filesystem was found.
    pub(super) fn remove(&self, id: &str) {
        self.messages.lock().remove(id);
    }

    /// Returns the message about a volume whose filesystem is missing.
    pub(super) fn get(&self, id: &str) -> Option<String> {
        self.messages.lock().get(id).cloned()
    }

    /// Removes volumes that no longer exist.
    pub(super) fn retain(&self, is_there: impl Fn(&str) -> bool) {
        self.messages.lock().retain(|id, _| is_there(id));
    }
}
