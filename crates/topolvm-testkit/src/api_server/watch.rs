//! Watches: a stream of events from a place in the history on.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::json::metadata;
use super::kind::Kind;
use super::selector::Selector;
use super::state::{Ending, Shared, State};
use super::status_error::StatusError;
use super::store::{Revision, collection};

/// Parameters of a watch.
#[derive(Debug)]
pub(super) struct WatchOptions {
    pub(super) kind: Kind,
    pub(super) selector: Selector,
    pub(super) metadata_only: bool,
    pub(super) bookmarks: bool,
    pub(super) initial_events: bool,
    /// The resourceVersion to start after; `None` starts with all objects.
    pub(super) after: Option<u64>,
    pub(super) timeout: Option<Duration>,
}

struct Watch {
    shared: Arc<Shared>,
    options: WatchOptions,
    signal: watch::Receiver<u64>,
    place: usize,
    pending: VecDeque<Bytes>,
    generation: u64,
    bookmarks_sent: u64,
    deadline: Option<Instant>,
    ended: bool,
}

/// Starts a watch and returns its events as lines of JSON.
pub(super) fn watch_events(
    shared: Arc<Shared>,
    state: &State,
    options: WatchOptions,
) -> impl Stream<Item = Result<Bytes, io::Error>> + Send + use<> {
    let mut watch = Watch {
        signal: shared.signal.subscribe(),
        shared,
        place: state.store.end_of_history(),
        pending: VecDeque::new(),
        generation: state.watch_generation,
        bookmarks_sent: state.bookmarks_requested,
        deadline: options.timeout.map(|timeout| Instant::now() + timeout),
        options,
        ended: false,
    };
    watch.start(state);
    futures::stream::unfold(watch, |mut watch| async move { watch.next().await.map(|line| (line, watch)) })
}

impl Watch {
    fn start(&mut self, state: &State) {
        match self.options.after {
            Some(version) if version < state.store.oldest() => {
                let gone = StatusError::expired(version, state.store.oldest()).to_json();
                self.send("ERROR", &gone);
                self.ended = true;
            }
            Some(version) => self.place = state.store.place_after(version),
            None => {
                for object in state.store.list_at(&self.options.kind, state.store.version()).values() {
                    if self.options.selector.matches(object) {
                        let added = represent(object, self.options.metadata_only);
                        self.send("ADDED", &added);
                    }
                }
                if self.options.initial_events {
                    self.send_bookmark(state, true);
                }
            }
        }
    }

    async fn next(&mut self) -> Option<Result<Bytes, io::Error>> {
        loop {
            if let Some(line) = self.pending.pop_front() {
                return Some(Ok(line));
            }
            if self.ended {
                return None;
            }
            let ending = {
                let shared = Arc::clone(&self.shared);
                let state = shared.lock();
                self.signal.mark_unchanged();
                let is_over = self.generation != state.watch_generation;
                self.read_history(&state, if is_over { state.ended_at } else { state.store.end_of_history() });
                is_over.then_some(state.ending)
            };
            match ending {
                Some(ending) => {
                    self.ended = true;
                    match ending {
                        Ending::Expired => self.send("ERROR", &StatusError::injected(410).to_json()),
                        Ending::Broken if self.pending.is_empty() => {
                            return Some(Err(io::Error::from(io::ErrorKind::ConnectionReset)));
                        }
                        Ending::Broken | Ending::Closed => {}
                    }
                }
                None if self.pending.is_empty() => self.wait().await,
                None => {}
            }
        }
    }

    /// Waits until something has happened or the time of the watch is over.
    async fn wait(&mut self) {
        let changed = self.signal.changed();
        let is_over = match self.deadline {
            Some(deadline) => tokio::time::timeout_at(deadline, changed).await.is_err(),
            None => changed.await.is_err(),
        };
        if is_over {
            let shared = Arc::clone(&self.shared);
            self.send_bookmark(&shared.lock(), false);
            self.ended = true;
        }
    }

    fn read_history(&mut self, state: &State, until: usize) {
        let wanted = collection(&self.options.kind);
        let unread = until.saturating_sub(self.place);
        for revision in state.store.history_from(self.place).iter().take(unread) {
            if revision.collection == wanted
                && let Some((type_, object)) = event_of(revision, &self.options)
            {
                self.send(type_, &object);
            }
        }
        self.place = self.place.max(until);
        if self.bookmarks_sent != state.bookmarks_requested {
            self.bookmarks_sent = state.bookmarks_requested;
            self.send_bookmark(state, false);
        }
    }

    fn send(&mut self, type_: &str, object: &Value) {
        let line = format!("{{\"type\":\"{type_}\",\"object\":{object}}}\n");
        self.pending.push_back(line.into());
    }

    fn send_bookmark(&mut self, state: &State, ends_initial_events: bool) {
        if !self.options.bookmarks {
            return;
        }
        let kind = &self.options.kind;
        let mut bookmark = json!({
            "kind": kind.name, "apiVersion": kind.api_version(),
            "metadata": {"resourceVersion": state.store.version().to_string()},
        });
        if ends_initial_events {
            let annotations = json!({"k8s.io/initial-events-end": "true"});
            metadata(&mut bookmark).insert("annotations".to_owned(), annotations);
        }
        self.send("BOOKMARK", &bookmark);
    }
}

/// Returns the event of a write for a watch: an object that begins or ceases to match is added or deleted.
fn event_of(revision: &Revision, options: &WatchOptions) -> Option<(&'static str, Value)> {
    let matching = |object: &Option<Arc<Value>>| {
        let object = object.as_ref()?;
        options.selector.matches(object).then(|| Arc::clone(object))
    };
    let (type_, object) = match (matching(&revision.before), matching(&revision.after)) {
        (None, None) => return None,
        (None, Some(after)) => ("ADDED", after),
        (Some(_), Some(after)) => ("MODIFIED", after),
        (Some(before), None) => ("DELETED", before),
    };
    let mut object = represent(&object, options.metadata_only);
    // The last state that matched, with the version of the write that ended it
    metadata(&mut object).insert("resourceVersion".to_owned(), revision.version.to_string().into());
    Some((type_, object))
}

/// Returns an object as the client wants it: whole, or its metadata alone.
pub(super) fn represent(object: &Value, metadata_only: bool) -> Value {
    if metadata_only {
        json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object["metadata"]})
    } else {
        object.clone()
    }
}
