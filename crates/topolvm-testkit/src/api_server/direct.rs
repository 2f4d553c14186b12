//! Direct access of tests to the stored objects, past clients, rules and faults.

use std::sync::Arc;

use serde::Serialize;
use serde_json::Value;

use super::ApiServer;
use super::kind::Kind;
use super::ownership::Manager;
use super::state::State;
use super::status_error::StatusError;
use super::store::ObjectName;
use super::write::{self, Part, Writer};

impl ApiServer {
    /// Creates an object or replaces it, status included, past all rules and faults. Returns it as stored.
    ///
    /// # Panics
    /// When the object is of a kind that the server does not serve, has no name, or cannot be written as JSON.
    #[expect(clippy::panic, reason = "a test with a wrong fixture is to fail where it is")]
    pub fn apply_json(&self, object: impl Serialize) -> Value {
        let object =
            serde_json::to_value(object).unwrap_or_else(|error| panic!("object cannot be written as JSON: {error}"));
        let mut state = self.shared.lock();
        let found =
            state.kinds.iter().find(|kind| object["kind"] == kind.name && object["apiVersion"] == kind.api_version());
        let Some(kind) = found.cloned() else {
            panic!("the fake server serves no {} {}", object["apiVersion"], object["kind"]);
        };
        let namespace = object["metadata"]["namespace"].as_str();
        let namespace = if kind.namespaced { namespace.unwrap_or("default") } else { "" };
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let key: ObjectName = (namespace.to_owned(), name.to_owned());
        let stored = state.put_directly(&kind, &key, object.clone());
        drop(state);
        self.shared.notify_waiters();
        match stored {
            Ok(stored) => Value::clone(&stored),
            Err(error) => panic!("{} {name} is refused: {}", kind.name, error.to_json()["message"]),
        }
    }

    /// Returns an object as it is now. The namespace of cluster-scoped objects is the empty string.
    pub fn get_json(&self, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        let state = self.shared.lock();
        let key: ObjectName = (namespace.to_owned(), name.to_owned());
        let mut kinds = state.kinds.iter().filter(|kind| kind.has_name(resource));
        kinds.find_map(|kind| state.store.get(kind, &key)).map(|stored| Value::clone(&stored.object))
    }

    /// Lists all objects of a resource in the order of namespace and name.
    pub fn list_json(&self, resource: &str) -> Vec<Value> {
        let state = self.shared.lock();
        let version = state.store.version();
        let kinds = state.kinds.iter().filter(|kind| kind.has_name(resource));
        let objects = kinds.flat_map(|kind| state.store.list_at(kind, version).into_values());
        objects.map(|object| Value::clone(&object)).collect()
    }

    /// Returns the notes of the Events with this reason.
    pub fn event_notes(&self, reason: &str) -> Vec<String> {
        let text = |event: &Value, field| event.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
        let events = self.list_json("events.events.k8s.io").into_iter();
        events.filter(|event| text(event, "reason") == reason).map(|event| text(&event, "note")).collect()
    }

    /// Changes an object in place, past all rules and faults. An object that is marked for deletion goes away with its
    /// last finalizer.
    ///
    /// # Panics
    /// When there is no such object.
    #[expect(clippy::panic, reason = "a test with a wrong fixture is to fail where it is")]
    pub fn edit(&self, resource: &str, namespace: &str, name: &str, edit: impl FnOnce(&mut Value)) {
        let key: ObjectName = (namespace.to_owned(), name.to_owned());
        let mut state = self.shared.lock();
        let mut kinds = state.kinds.iter().filter(|kind| kind.has_name(resource));
        let found = kinds.find_map(|kind| Some((kind.clone(), Value::clone(&state.store.get(kind, &key)?.object))));
        let Some((kind, mut object)) = found else {
            panic!("there is no {resource} {namespace}/{name}");
        };
        edit(&mut object);
        let edited = state.put_directly(&kind, &key, object);
        drop(state);
        self.shared.notify_waiters();
        if let Err(error) = edited {
            panic!("{} {name} is refused: {}", kind.name, error.to_json()["message"]);
        }
    }

    /// Deletes an object as a client would: while it has finalizers, it stays and has a `deletionTimestamp`. Returns
    /// false when there is none.
    pub fn delete(&self, resource: &str, namespace: &str, name: &str) -> bool {
        let key: ObjectName = (namespace.to_owned(), name.to_owned());
        let mut state = self.shared.lock();
        let state = &mut *state;
        let kinds = state.kinds.iter().filter(|kind| kind.has_name(resource));
        let found = kinds.filter(|kind| write::delete(&mut state.store, kind, &key, &Value::Null).is_ok());
        let is_deleted = found.count() > 0;
        self.shared.notify_waiters();
        is_deleted
    }
}

impl State {
    /// Creates or replaces an object, with the fields that only the server may set.
    fn put_directly(&mut self, kind: &Kind, key: &ObjectName, object: Value) -> Result<Arc<Value>, StatusError> {
        let writer = Writer {
            manager: Manager { name: "test".to_owned(), applies: false, subresource: false },
            part: Part::Everything,
            dry_run: false,
        };
        if self.store.get(kind, key).is_none() {
            return write::create(&mut self.store, kind, &key.0, object, &writer, None);
        }
        write::update(&mut self.store, kind, key, &writer, |_, _| Ok(object))
    }
}
