//! The form in which a written object is stored: fields that a write keeps, and fields that the server sets or drops.

use serde_json::Value;

use super::super::json::{as_map, metadata};
use super::super::kind::Kind;
use super::Part;

/// Metadata that only the server sets.
pub(super) const FIXED: &[&str] = &[
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "name",
    "namespace",
    "selfLink",
    "uid",
];

/// Keeps fixed metadata that a test has left out.
pub(super) fn keep_missing(old: &Value, new: &mut Value) {
    let new = metadata(new);
    for field in FIXED {
        if let (None, Some(value)) = (new.get(*field), old["metadata"].get(*field)) {
            new.insert((*field).to_owned(), value.clone());
        }
    }
    new.insert("resourceVersion".to_owned(), old["metadata"]["resourceVersion"].clone());
}

/// Keeps the part of an object that a write does not change: its status, or all but its status.
pub(super) fn keep_other_part(kind: &Kind, part: Part, old: &Value, new: &mut Value) {
    if !kind.has_status {
        return;
    }
    match part {
        Part::Everything => {}
        Part::Main => {
            match old.get("status") {
                Some(status) => as_map(new).insert("status".to_owned(), status.clone()),
                None => as_map(new).remove("status"),
            };
        }
        Part::Status => {
            let status = new.get("status").cloned();
            // Built-in kinds take metadata along with their status, custom ones do not
            let meta = if kind.custom { &old["metadata"] } else { &new["metadata"] }.clone();
            *new = old.clone();
            as_map(new).insert("metadata".to_owned(), meta);
            match status {
                Some(status) => as_map(new).insert("status".to_owned(), status),
                None => as_map(new).remove("status"),
            };
        }
    }
}

/// Drops fields that the schema lacks, `managedFields` and empty metadata, as the real server does.
pub(super) fn prune(kind: &Kind, object: &mut Value) {
    for (parent, field) in kind.unknown.iter().filter_map(|field| field.rsplit_once('/')) {
        if let Some(parent) = object.pointer_mut(parent).and_then(Value::as_object_mut) {
            parent.remove(field);
        }
    }
    let meta = metadata(object);
    meta.remove("managedFields");
    meta.retain(|_, value| match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::Bool(_) | Value::Number(_) => true,
    });
}

/// Returns true for an object that is being deleted.
pub(super) fn is_deleting(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// Returns the fields whose changes `metadata.generation` counts: all but metadata and status.
pub(super) fn desired_state(object: &Value) -> Vec<(&String, &Value)> {
    let fields = object.as_object().into_iter().flatten();
    fields.filter(|(name, _)| !matches!(name.as_str(), "metadata" | "status")).collect()
}

/// Increments `metadata.generation`.
pub(super) fn increment_generation(object: &mut Value) {
    let generation = object["metadata"]["generation"].as_u64().unwrap_or_default() + 1;
    metadata(object).insert("generation".to_owned(), generation.into());
}
