//! Replacing, patching, applying and deleting, as requests ask for it.

use std::sync::Arc;

use http::{StatusCode, header};
use serde_json::{Value, json};

use super::asked::Asked;
use super::ownership::Ownership;
use super::patch::{Patch, patched};
use super::refusal::Refusal;
use super::state::State;
use super::store::{ObjectName, metadata};
use super::write::{self, Part, Writer};

pub(super) fn replace(state: &mut State, asked: &Asked, name: &str, body: Value) -> Result<Arc<Value>, Refusal> {
    if asked.kind.custom && body["metadata"]["resourceVersion"].as_str().unwrap_or_default().is_empty() {
        let why = "metadata.resourceVersion: Invalid value: 0x0: must be specified for an update";
        return Err(Refusal::invalid(&asked.kind, name, why));
    }
    let writer = asked.writer(false)?;
    write::update(&mut state.store, &asked.kind, &asked.key(name), &writer, |_, _| Ok(body))
}

pub(super) fn patch(
    state: &mut State,
    asked: &Asked,
    name: &str,
    body: &[u8],
) -> Result<(StatusCode, Arc<Value>), Refusal> {
    let media_type = asked.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let patch = Patch::parse(&asked.kind, media_type.unwrap_or_default(), body)?;
    let key = asked.key(name);
    let Patch::Apply(configuration) = patch else {
        let writer = asked.writer(false)?;
        let change = |old: &Value, _: &mut Ownership| patched(old, &patch);
        return Ok((StatusCode::OK, write::update(&mut state.store, &asked.kind, &key, &writer, change)?));
    };
    if asked.query.get("fieldManager").is_empty() {
        return Err(Refusal::invalid(&asked.kind, name, "fieldManager: Required value: is required for apply patch"));
    }
    if !configuration["metadata"]["managedFields"].is_null() {
        return Err(Refusal::bad_request("metadata.managedFields must be nil"));
    }
    let writer = asked.writer(true)?;
    let force = asked.query.is_set("force");
    let exists = state.store.get(&asked.kind, &key).is_some();
    if !exists && writer.part == Part::Main {
        return apply_new(state, asked, &key, configuration, &writer);
    }
    let applied = write::update(&mut state.store, &asked.kind, &key, &writer, |old, ownership| {
        let mut new = old.clone();
        for field in ["uid", "resourceVersion"] {
            if let Some(given) = configuration["metadata"].get(field).filter(|given| !given.is_null()) {
                metadata(&mut new).insert(field.to_owned(), given.clone());
            }
        }
        ownership
            .apply(&writer.manager, &mut new, &configuration, force)
            .map_err(|conflicts| Refusal::apply_conflicts(&conflicts))?;
        Ok(new)
    })?;
    Ok((StatusCode::OK, applied))
}

/// Applying an object that does not exist makes it, unless the configuration is about a certain object.
fn apply_new(
    state: &mut State,
    asked: &Asked,
    key: &ObjectName,
    mut configuration: Value,
    writer: &Writer,
) -> Result<(StatusCode, Arc<Value>), Refusal> {
    if let Some(uid) = configuration["metadata"]["uid"].as_str().filter(|uid| !uid.is_empty()) {
        let why = format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found");
        return Err(Refusal::conflict(&asked.kind, &key.1, &why));
    }
    metadata(&mut configuration).insert("name".to_owned(), key.1.as_str().into());
    let mut ownership = Ownership::default();
    let mut object = configuration.clone();
    // Nobody else owns anything yet
    drop(ownership.apply(&writer.manager, &mut object, &configuration, true));
    let created = write::create(&mut state.store, &asked.kind, &key.0, object, writer, Some(ownership))?;
    Ok((StatusCode::CREATED, created))
}

pub(super) fn delete_collection(state: &mut State, asked: &Asked, body: &[u8]) -> Result<Value, Refusal> {
    let (selector, options) = (asked.selector()?, delete_options(body)?);
    let all = state.store.list_at(&asked.kind, state.store.version());
    let mut items = Vec::new();
    for (name, object) in all.iter().filter(|(_, object)| selector.matches(object)) {
        write::delete(&mut state.store, &asked.kind, name, &options)?;
        items.push(Value::clone(object));
    }
    let meta = json!({"resourceVersion": state.store.version().to_string()});
    let kind = format!("{}List", asked.kind.name);
    Ok(json!({"kind": kind, "apiVersion": asked.kind.api_version(), "metadata": meta, "items": items}))
}

pub(super) fn delete_options(body: &[u8]) -> Result<Value, Refusal> {
    if body.is_empty() { Ok(Value::Null) } else { json_body(body) }
}

pub(super) fn json_body(body: &[u8]) -> Result<Value, Refusal> {
    serde_json::from_slice(body)
        .map_err(|error| Refusal::bad_request(format!("the object provided is unrecognized: {error}")))
}
