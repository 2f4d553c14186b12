//! Creating, updating and deleting objects under the rules of the API server.

mod stored_form;
mod validate;

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::json::{as_map, metadata};
use super::kind::Kind;
use super::ownership::{Manager, Ownership};
use super::status_error::StatusError;
use super::store::{ObjectName, Store, Stored};

use stored_form::{FIXED, desired_state, increment_generation, is_deleting, keep_missing, keep_other_part, prune};
use validate::{check_finalizers, check_identity, check_new, check_preconditions, check_types};

/// The part of an object that a write may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Main,
    Status,
    /// Everything, also the fields that only the server sets: for tests.
    Everything,
}

/// The author of a write, the part that it changes, and `dryRun`.
#[derive(Clone, Debug)]
pub(super) struct Writer {
    pub(super) manager: Manager,
    pub(super) part: Part,
    pub(super) dry_run: bool,
}

/// Creates an object. `ownership` is that of a configuration that was applied.
pub(super) fn create(
    store: &mut Store,
    kind: &Kind,
    namespace: &str,
    mut object: Value,
    writer: &Writer,
    ownership: Option<Ownership>,
) -> Result<Arc<Value>, StatusError> {
    let by_test = writer.part == Part::Everything;
    check_types(kind, &mut object)?;
    let meta = metadata(&mut object);
    let key: ObjectName = (namespace.to_owned(), new_name(store, kind, meta)?);
    check_new(meta, namespace, by_test)?;
    if store.get(kind, &key).is_some() {
        return Err(StatusError::already_exists(kind, &key.1));
    }
    if !by_test {
        meta.retain(|field, _| !FIXED.contains(&field.as_str()));
    }
    set_identity(store, kind, &key, meta);
    prune(kind, &mut object);
    // The one kind that may be made with its status
    if !by_test && kind.has_status && kind.qualified_kind() != "Node" {
        as_map(&mut object).remove("status");
    }
    if writer.dry_run {
        return Ok(Arc::new(object));
    }
    let ownership = ownership.unwrap_or_else(|| {
        let mut ownership = Ownership::default();
        ownership.update(&writer.manager, &Value::Null, &object);
        ownership
    });
    Ok(store.put(kind, key, object, ownership))
}

/// Returns the name of a new object: its own, or one generated from `generateName`.
fn new_name(store: &Store, kind: &Kind, meta: &Map<String, Value>) -> Result<String, StatusError> {
    let text = |field: &str| meta.get(field).and_then(Value::as_str).unwrap_or_default();
    match (text("name"), text("generateName")) {
        ("", "") => {
            Err(StatusError::invalid(kind, "", "metadata.name: Required value: name or generateName is required"))
        }
        ("", base) => Ok(format!("{base}{}", store.next_suffix())),
        (name, _) => Ok(name.to_owned()),
    }
}

/// Gives a new object its name and namespace, and the UID, time and generation that it lacks.
fn set_identity(store: &Store, kind: &Kind, (namespace, name): &ObjectName, meta: &mut Map<String, Value>) {
    meta.insert("name".to_owned(), name.as_str().into());
    if kind.namespaced {
        meta.insert("namespace".to_owned(), namespace.as_str().into());
    }
    meta.entry("uid").or_insert_with(|| store.next_uid().into());
    meta.entry("creationTimestamp").or_insert_with(|| store.now().into());
    meta.entry("generation").or_insert_with(|| 1.into());
}

/// Updates an object to the one that `change` returns.
pub(super) fn update(
    store: &mut Store,
    kind: &Kind,
    key: &ObjectName,
    writer: &Writer,
    change: impl FnOnce(&Value, &mut Ownership) -> Result<Value, StatusError>,
) -> Result<Arc<Value>, StatusError> {
    let name = key.1.as_str();
    let Some(Stored { object: old, mut ownership }) = store.get(kind, key).cloned() else {
        return Err(StatusError::not_found(kind, name));
    };
    let mut new = change(&old, &mut ownership)?;
    check_types(kind, &mut new)?;
    if writer.part == Part::Everything {
        keep_missing(&old, &mut new);
    } else {
        check_identity(kind, name, &old, &mut new)?;
    }
    keep_other_part(kind, writer.part, &old, &mut new);
    prune(kind, &mut new);
    check_finalizers(kind, name, &old, &new)?;
    if *old == new {
        // A write that changes nothing is no write: no new version, no event
        return Ok(old);
    }
    if desired_state(&old) != desired_state(&new) {
        increment_generation(&mut new);
    }
    if writer.dry_run {
        return Ok(Arc::new(new));
    }
    if is_deleting(&new) && new["metadata"]["finalizers"].is_null() {
        store.remove(kind, key);
        return Ok(Arc::new(new));
    }
    if !writer.manager.applies {
        ownership.update(&writer.manager, &old, &new);
    }
    Ok(store.put(kind, key.clone(), new, ownership))
}

/// Deletes an object, or sets its `deletionTimestamp` where it has finalizers. Returns the object that is left, or a
/// Status.
pub(super) fn delete(store: &mut Store, kind: &Kind, key: &ObjectName, options: &Value) -> Result<Value, StatusError> {
    let name = key.1.as_str();
    let Some(Stored { object, ownership }) = store.get(kind, key).cloned() else {
        return Err(StatusError::not_found(kind, name));
    };
    check_preconditions(kind, name, &object, options)?;
    let dry_run = options["dryRun"].as_array().is_some_and(|values| !values.is_empty());
    if !object["metadata"]["finalizers"].is_null() {
        if is_deleting(&object) || dry_run {
            return Ok(Value::clone(&object));
        }
        let mut marked = Value::clone(&object);
        let meta = metadata(&mut marked);
        meta.insert("deletionTimestamp".to_owned(), store.now().into());
        meta.insert("deletionGracePeriodSeconds".to_owned(), 0.into());
        increment_generation(&mut marked);
        return Ok(Value::clone(&store.put(kind, key.clone(), marked, ownership)));
    }
    if !dry_run {
        store.remove(kind, key);
    }
    Ok(json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
        "details": {"name": name, "group": kind.group, "kind": kind.plural, "uid": object["metadata"]["uid"]},
    }))
}
