//! The state of a server, which all its clones share.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::fault::Faults;
use super::kind::Kind;
use super::request_log::LoggedRequest;
use super::store::Store;

#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// Counts the changes of the state that a task may wait for.
    pub(super) signal: watch::Sender<u64>,
}

pub(super) struct State {
    pub(super) kinds: Vec<Kind>,
    pub(super) store: Store,
    pub(super) is_connected: bool,
    /// All requests are answered with 401.
    pub(super) rejects_credentials: bool,
    /// Generation of new watches. A watch of an earlier one ends.
    pub(super) watch_generation: u64,
    pub(super) ending: Ending,
    /// The place in the history that ended watches do not read beyond.
    pub(super) ended_at: usize,
    pub(super) bookmarks_requested: u64,
    pub(super) faults: Faults,
    pub(super) requests: Vec<LoggedRequest>,
    /// Users and audiences by token.
    pub(super) tokens: BTreeMap<String, (String, String)>,
    /// Authorized accesses: user, verb and path.
    pub(super) grants: BTreeSet<[String; 3]>,
}

/// The manner in which the watches of earlier generations end.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ending {
    Broken,
    Closed,
    Expired,
}

impl Shared {
    pub(super) fn new(kinds: Vec<Kind>) -> Self {
        Self {
            state: Mutex::new(State {
                kinds,
                store: Store::new(),
                is_connected: true,
                rejects_credentials: false,
                watch_generation: 0,
                ending: Ending::Closed,
                ended_at: 0,
                bookmarks_requested: 0,
                tokens: BTreeMap::new(),
                grants: BTreeSet::new(),
                faults: Faults::default(),
                requests: Vec::new(),
            }),
            signal: watch::Sender::new(0),
        }
    }

    /// Locks the state. A test that panicked while it held the lock has failed anyway.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the watches and tests that wait for a change of the state.
    pub(super) fn notify_waiters(&self) {
        self.signal.send_modify(|count| *count += 1);
    }
}

impl State {
    /// Ends all watches at the present end of the history.
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
