//! The rules for creating, changing and deleting objects.

use std::sync::Arc;

use serde_json::{Value, json};

use super::kind::Kind;
use super::ownership::{Manager, Ownership};
use super::refusal::Refusal;
use super::store::{ObjectName, Store, Stored, as_map, metadata};

/// What a write may touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Main,
    Status,
    /// What tests may: everything, also what is the server's own.
    Everything,
}

/// Who writes, what, and whether for real.
#[derive(Clone, Debug)]
pub(super) struct Writer {
    pub(super) manager: Manager,
    pub(super) part: Part,
    pub(super) dry_run: bool,
}

/// Metadata that only the server sets.
const FIXED: &[&str] = &[
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "name",
    "namespace",
    "selfLink",
    "uid",
];

pub(super) fn create(
    store: &mut Store,
    kind: &Kind,
    namespace: &str,
    mut object: Value,
    writer: &Writer,
    ownership: Option<Ownership>,
) -> Result<Arc<Value>, Refusal> {
    check_types(kind, &mut object)?;
    let meta = metadata(&mut object);
    let given = meta.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let base = meta.get("generateName").and_then(Value::as_str).unwrap_or_default();
    let name = match (given.as_str(), base) {
        ("", "") => {
            return Err(Refusal::invalid(kind, "", "metadata.name: Required value: name or generateName is required"));
        }
        ("", base) => format!("{base}{}", store.next_suffix()),
        (name, _) => name.to_owned(),
    };
    if meta.get("namespace").and_then(Value::as_str).is_some_and(|given| !given.is_empty() && given != namespace) {
        let why = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(Refusal::bad_request(why));
    }
    let by_test = writer.part == Part::Everything;
    if !by_test && meta.get("resourceVersion").and_then(Value::as_str).is_some_and(|version| !version.is_empty()) {
        return Err(Refusal::bad_request("resourceVersion should not be set on objects to be created"));
    }
    let key: ObjectName = (namespace.to_owned(), name.clone());
    if store.get(kind, &key).is_some() {
        return Err(Refusal::already_exists(kind, &name));
    }
    if !by_test {
        meta.retain(|field, _| !FIXED.contains(&field.as_str()));
    }
    meta.insert("name".to_owned(), name.into());
    if kind.namespaced {
        meta.insert("namespace".to_owned(), namespace.into());
    }
    meta.entry("uid").or_insert_with(|| store.next_uid().into());
    meta.entry("creationTimestamp").or_insert_with(|| store.now().into());
    meta.entry("generation").or_insert_with(|| 1.into());
    tidy(kind, &mut object);
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

/// Replaces an object by what `change` makes of it, under the rules of an update.
pub(super) fn update(
    store: &mut Store,
    kind: &Kind,
    key: &ObjectName,
    writer: &Writer,
    change: impl FnOnce(&Value, &mut Ownership) -> Result<Value, Refusal>,
) -> Result<Arc<Value>, Refusal> {
    let name = key.1.as_str();
    let Some(Stored { object: old, mut ownership }) = store.get(kind, key).cloned() else {
        return Err(Refusal::not_found(kind, name));
    };
    let mut new = change(&old, &mut ownership)?;
    check_types(kind, &mut new)?;
    if writer.part == Part::Everything {
        keep_missing(&old, &mut new);
    } else {
        check_identity(kind, name, &old, &mut new)?;
    }
    keep_other_part(kind, writer.part, &old, &mut new);
    tidy(kind, &mut new);
    check_finalizers(kind, name, &old, &new)?;
    if *old == new {
        // A write that changes nothing is no write: no new version, no event
        return Ok(old);
    }
    if desired_state(&old) != desired_state(&new) {
        bump_generation(&mut new);
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

/// Deletes an object, or marks it where finalizers hold it. The answer is the object that is left, or a Status.
pub(super) fn delete(store: &mut Store, kind: &Kind, key: &ObjectName, options: &Value) -> Result<Value, Refusal> {
    let name = key.1.as_str();
    let Some(Stored { object, ownership }) = store.get(kind, key).cloned() else {
        return Err(Refusal::not_found(kind, name));
    };
    for (field, label) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
        let (wanted, found) = (&options["preconditions"][field], &object["metadata"][field]);
        if let (Some(wanted), Some(found)) = (wanted.as_str(), found.as_str())
            && wanted != found
        {
            let why =
                format!("Precondition failed: {label} in precondition: {wanted}, {label} in object meta: {found}");
            return Err(Refusal::conflict(kind, name, &why));
        }
    }
    let dry_run = options["dryRun"].as_array().is_some_and(|values| !values.is_empty());
    if !object["metadata"]["finalizers"].is_null() {
        if is_deleting(&object) || dry_run {
            return Ok(Value::clone(&object));
        }
        let mut marked = Value::clone(&object);
        let now = store.now();
        let meta = metadata(&mut marked);
        meta.insert("deletionTimestamp".to_owned(), now.into());
        meta.insert("deletionGracePeriodSeconds".to_owned(), 0.into());
        bump_generation(&mut marked);
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

/// The body's `apiVersion` and `kind` must be the path's; missing ones are filled in.
fn check_types(kind: &Kind, object: &mut Value) -> Result<(), Refusal> {
    if !object.is_object() {
        return Err(Refusal::bad_request("the body is not a JSON object"));
    }
    let (group_version, map) = (kind.api_version(), as_map(object));
    for (field, expected) in [("apiVersion", group_version.as_str()), ("kind", kind.name.as_str())] {
        let given = map.get(field).and_then(Value::as_str).unwrap_or_default();
        if !given.is_empty() && given != expected {
            let what = if field == "kind" { "kind" } else { "API version" };
            return Err(Refusal::bad_request(format!(
                "the {what} in the data ({given}) does not match the expected {what} ({expected})"
            )));
        }
        map.insert(field.to_owned(), expected.into());
    }
    Ok(())
}

/// The new object must be a version of the old one, and made from its latest state where it says from which.
fn check_identity(kind: &Kind, name: &str, old: &Value, new: &mut Value) -> Result<(), Refusal> {
    let old = &old["metadata"];
    let new = metadata(new);
    let given = |field: &str| new.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
    if let Some(given) = given("name")
        && given != name
    {
        return Err(Refusal::bad_request(format!(
            "the name of the object ({given}) does not match the name on the URL ({name})"
        )));
    }
    if let (Some(given), Some(found)) = (given("uid"), old["uid"].as_str())
        && given != found
    {
        let why = format!("Precondition failed: UID in precondition: {given}, UID in object meta: {found}");
        return Err(Refusal::conflict(kind, name, &why));
    }
    if given("resourceVersion").is_some_and(|given| Some(given) != old["resourceVersion"].as_str()) {
        return Err(Refusal::modified(kind, name));
    }
    new.insert("resourceVersion".to_owned(), old["resourceVersion"].clone());
    for field in FIXED {
        match old.get(*field) {
            Some(value) => new.insert((*field).to_owned(), value.clone()),
            None => new.remove(*field),
        };
    }
    Ok(())
}

/// A test need not repeat what identifies the object and what the server wrote.
fn keep_missing(old: &Value, new: &mut Value) {
    let new = metadata(new);
    for field in FIXED {
        if let (None, Some(value)) = (new.get(*field), old["metadata"].get(*field)) {
            new.insert((*field).to_owned(), value.clone());
        }
    }
    new.insert("resourceVersion".to_owned(), old["metadata"]["resourceVersion"].clone());
}

/// A write to the object leaves the status, a write to the status leaves the rest.
fn keep_other_part(kind: &Kind, part: Part, old: &Value, new: &mut Value) {
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

fn check_finalizers(kind: &Kind, name: &str, old: &Value, new: &Value) -> Result<(), Refusal> {
    let finalizers = |object: &Value| object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    let before = finalizers(old);
    let added: Vec<String> =
        finalizers(new).iter().filter(|name| !before.contains(name)).map(Value::to_string).collect();
    if !is_deleting(old) || added.is_empty() {
        return Ok(());
    }
    let why = format!(
        "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found \
         new finalizers []string{{{}}}",
        added.join(", ")
    );
    Err(Refusal::invalid(kind, name, &why))
}

/// What the real server leaves out when it stores an object.
fn tidy(kind: &Kind, object: &mut Value) {
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

fn is_deleting(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

/// What `metadata.generation` counts the changes of: everything but metadata and status.
fn desired_state(object: &Value) -> Vec<(&String, &Value)> {
    let fields = object.as_object().into_iter().flatten();
    fields.filter(|(name, _)| !matches!(name.as_str(), "metadata" | "status")).collect()
}

fn bump_generation(object: &mut Value) {
    let generation = object["metadata"]["generation"].as_u64().unwrap_or_default() + 1;
    metadata(object).insert("generation".to_owned(), generation.into());
}
