//! The objects of the cluster as watches report them, for scenarios that wait for a state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures::{StreamExt as _, TryStreamExt as _};
use kube::api::DynamicObject;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client};
use serde_json::Value;

use super::kinds::Kind;

/// Identity of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) kind: Kind,
    /// Empty for objects of the cluster.
    pub(super) namespace: String,
    pub(super) name: String,
}

/// The objects at one moment, and what is known of earlier ones.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) objects: BTreeMap<Key, Value>,
    /// The UID of each object that was ever observed, with its identity, except Events.
    pub(super) uids: BTreeMap<String, Key>,
}

impl State {
    /// Returns an object, if it exists.
    pub(super) fn get(&self, kind: Kind, namespace: &str, name: &str) -> Option<&Value> {
        let namespace = if kind.is_namespaced() { namespace } else { "" };
        self.objects.get(&Key { kind, namespace: namespace.to_owned(), name: name.to_owned() })
    }

    /// Returns the Events about objects of a namespace; those about objects of the cluster are in `default`.
    pub(super) fn events_in(&self, namespace: &str) -> impl Iterator<Item = &Value> {
        let start = Key { kind: Kind::Event, namespace: namespace.to_owned(), name: String::new() };
        let namespace = start.namespace.clone();
        let is_in = move |key: &Key| key.kind == Kind::Event && key.namespace == namespace;
        self.objects.range(start..).take_while(move |(key, _)| is_in(key)).map(|(_, event)| event)
    }

    /// Returns the UIDs of the claims that a namespace has or had.
    pub(super) fn claim_uids(&self, namespace: &str) -> BTreeSet<&str> {
        self.uids_in(Kind::Claim, namespace)
    }

    /// Returns the UIDs of the objects of a kind that a namespace has or had.
    pub(super) fn uids_in(&self, kind: Kind, namespace: &str) -> BTreeSet<&str> {
        let is_one = |key: &Key| key.kind == kind && key.namespace == namespace;
        self.uids.iter().filter(|(_, key)| is_one(key)).map(|(uid, _)| uid.as_str()).collect()
    }

    fn apply(&mut self, kind: Kind, object: &DynamicObject) {
        let key = key_of(kind, object);
        if let Some(uid) = &object.metadata.uid
            && kind != Kind::Event
        {
            self.uids.insert(uid.clone(), key.clone());
        }
        if let Ok(value) = serde_json::to_value(object) {
            self.objects.insert(key, value);
        }
    }
}

fn key_of(kind: Kind, object: &DynamicObject) -> Key {
    Key {
        kind,
        namespace: object.metadata.namespace.clone().unwrap_or_default(),
        name: object.metadata.name.clone().unwrap_or_default(),
    }
}

/// The state that watches keep up to date. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Observed {
    /// Watches all objects of a kind until the future is dropped. A broken watch is started again.
    pub(super) async fn watch(self, client: Client, kind: Kind) {
        let api: Api<DynamicObject> = Api::all_with(client, &kind.resource());
        let mut events = watcher(api, watcher::Config::default()).default_backoff().into_stream().boxed();
        let mut listed = BTreeSet::new();
        loop {
            let Ok(Some(event)) = events.try_next().await else { continue };
            let mut state = self.lock();
            match event {
                watcher::Event::Init => listed.clear(),
                watcher::Event::InitApply(object) => {
                    listed.insert(key_of(kind, &object));
                    state.apply(kind, &object);
                }
                watcher::Event::InitDone => state.objects.retain(|key, _| key.kind != kind || listed.contains(key)),
                watcher::Event::Apply(object) => state.apply(kind, &object),
                watcher::Event::Delete(object) => drop(state.objects.remove(&key_of(kind, &object))),
            }
            drop(state);
            self.shared.changed.notify_all();
        }
    }

    /// Reads the state.
    pub(super) fn read<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        read(&self.lock())
    }

    /// Waits until `find` returns something, or returns nothing at the deadline.
    pub(super) fn wait<T>(&self, deadline: Instant, find: impl Fn(&State) -> Option<T>) -> Option<T> {
        let mut state = self.lock();
        loop {
            if let Some(found) = find(&state) {
                return Some(found);
            }
            let left = deadline.checked_duration_since(Instant::now())?;
            (state, _) = self.shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
