//! At most one operation per key at a time. CSI allows a plugin to answer `ABORTED` to a second call for the same
//! volume, and the sidecars and kubelet then try again.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

/// The keys that are being worked on.
#[derive(Clone, Debug, Default)]
pub struct InFlight {
    keys: Arc<Mutex<HashSet<String>>>,
}

impl InFlight {
    /// Takes the turn for a key, or `None` while another caller has it. The turn ends when it is dropped.
    pub fn start(&self, key: &str) -> Option<Turn> {
        let taken = self.keys.lock().unwrap_or_else(PoisonError::into_inner).insert(key.to_owned());
        taken.then(|| Turn { keys: Arc::clone(&self.keys), key: key.to_owned() })
    }
}

/// The right to work on a key.
#[derive(Debug)]
#[must_use = "the turn ends when it is dropped"]
pub struct Turn {
    keys: Arc<Mutex<HashSet<String>>>,
    key: String,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_turn_at_a_time_and_others_are_free() {
        let in_flight = InFlight::default();
        let turn = in_flight.start("a").unwrap();
        assert!(in_flight.start("a").is_none());
        assert!(in_flight.start("b").is_some());
        drop(turn);
        assert!(in_flight.start("a").is_some());
    }
}
