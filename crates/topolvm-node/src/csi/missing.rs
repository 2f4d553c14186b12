//! Which volumes of this node have lost their filesystem, as far as the last call saw.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Volumes whose filesystem could not be seen when they were to be mounted, by id, with what was said of it. A question
/// about the health of a volume starts no process and looks here.
#[derive(Debug, Default)]
pub(super) struct MissingFilesystems {
    messages: Mutex<HashMap<String, String>>,
}

impl MissingFilesystems {
    /// The filesystem cannot be seen.
    pub(super) fn lost(&self, id: &str, message: String) {
        self.lock().insert(id.to_owned(), message);
    }

    /// The filesystem is there, or the volume is not.
    pub(super) fn found(&self, id: &str) {
        self.lock().remove(id);
    }

    /// What was said of a volume whose filesystem could not be seen.
    pub(super) fn get(&self, id: &str) -> Option<String> {
        self.lock().get(id).cloned()
    }

    /// Forgets volumes that are gone.
    pub(super) fn retain(&self, is_there: impl Fn(&str) -> bool) {
        self.lock().retain(|id, _| is_there(id));
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, String>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
