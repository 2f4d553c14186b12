//! Finds out what a new list of a watch no longer has.

use std::collections::HashSet;
use std::hash::Hash;

/// The keys that a list has named so far. A watch lists again when it has lost its position; objects that were deleted
/// meanwhile are only missing in the list.
#[derive(Clone, Debug)]
pub(crate) struct Listing<K> {
    listed: Option<HashSet<K>>,
    is_complete: bool,
}

impl<K> Default for Listing<K> {
    fn default() -> Self {
        Self { listed: None, is_complete: false }
    }
}

impl<K: Eq + Hash> Listing<K> {
    /// Begins a list.
    pub(crate) fn begin(&mut self) {
        self.listed = Some(HashSet::new());
    }

    /// Adds a key of the list.
    pub(crate) fn add(&mut self, key: K) {
        self.listed.get_or_insert_default().insert(key);
    }

    /// Ends the list, and returns the keys that it had.
    pub(crate) fn end(&mut self) -> HashSet<K> {
        self.is_complete = true;
        self.listed.take().unwrap_or_default()
    }

    /// Returns whether there was a whole list.
    pub(crate) fn is_complete(&self) -> bool {
        self.is_complete
    }
}
