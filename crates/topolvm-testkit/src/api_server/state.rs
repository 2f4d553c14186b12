//! What all clones of a server share.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::fault::Fault;
use super::kind::Kind;
use super::store::Store;

#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// Changes whenever something happened that somebody may wait for.
    pub(super) signal: watch::Sender<u64>,
}

pub(super) struct State {
    pub(super) kinds: Vec<Kind>,
    pub(super) store: Store,
    pub(super) is_connected: bool,
    /// A watch that began in an earlier generation ends.
    pub(super) watch_generation: u64,
    pub(super) ending: Ending,
    /// The place in the history that ended watches do not see beyond.
    pub(super) ended_at: usize,
    pub(super) bookmarks_asked: u64,
    pub(super) faults: Vec<Fault>,
    pub(super) requests: Vec<Logged>,
    /// Users by their tokens.
    pub(super) tokens: BTreeMap<String, String>,
    /// User, verb and path of what is allowed.
    pub(super) grants: BTreeSet<[String; 3]>,
}

/// How the watches of earlier generations end.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ending {
    Broken,
    Closed,
    Expired,
}

/// A request that arrived.
#[derive(Clone, Debug)]
pub(super) struct Logged {
    pub(super) verb: &'static str,
    /// None for requests that are about no resource.
    pub(super) kind: Option<Kind>,
    pub(super) path: String,
}

impl Shared {
    pub(super) fn new(kinds: Vec<Kind>) -> Self {
        Self {
            state: Mutex::new(State {
                kinds,
                store: Store::new(),
                is_connected: true,
                watch_generation: 0,
                ending: Ending::Closed,
                ended_at: 0,
                bookmarks_asked: 0,
                tokens: BTreeMap::new(),
                grants: BTreeSet::new(),
                faults: Vec::new(),
                requests: Vec::new(),
            }),
            signal: watch::Sender::new(0),
        }
    }

    /// The state. A test that panicked while it held the lock has failed anyway.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wake_all(&self) {
        self.signal.send_modify(|count| *count += 1);
    }
}

impl State {
    pub(super) fn end_watches(&mut self, ending: Ending) {
        self.watch_generation += 1;
        self.ending = ending;
        self.ended_at = self.store.end_of_history();
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("version", &self.store.version())
            .field("requests", &self.requests.len())
            .finish_non_exhaustive()
    }
}
