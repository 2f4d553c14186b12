//! Mutating requests: update, patch, apply and deletecollection.

use std::sync::Arc;

use http::{StatusCode, header};
use serde_json::{Value, json};

use super::json::metadata;
use super::ownership::Ownership;
use super::patch::{Patch, apply_patch};
use super::resource_request::ResourceRequest;
use super::state::State;
use super::status_error::StatusError;
use super::store::ObjectName;
use super::write::{self, Part, Writer};

/// Replaces an object (PUT). Custom resources need a `resourceVersion`.
pub(super) fn replace(
    state: &mut State,
    request: &ResourceRequest,
    name: &str,
    body: Value,
) -> Result<Arc<Value>, StatusError> {
    if request.kind.custom && body["metadata"]["resourceVersion"].as_str().unwrap_or_default().is_empty() {
        let why = "metadata.resourceVersion: Invalid value: 0x0: must be specified for an update";
        return Err(StatusError::invalid(&request.kind, name, why));
    }
    let writer = request.writer(false)?;
    write::update(&mut state.store, &request.kind, &request.key(name), &writer, |_, _| Ok(body))
}

/// Patches an object, or applies a configuration to it, which may create it.
pub(super) fn patch(
    state: &mut State,
    request: &ResourceRequest,
    name: &str,
    body: &[u8],
) -> Result<(StatusCode, Arc<Value>), StatusError> {
    let media_type = request.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let patch = Patch::parse(&request.kind, media_type.unwrap_or_default(), body)?;
    if let Patch::Apply(configuration) = patch {
        return apply(state, request, name, configuration);
    }
    let writer = request.writer(false)?;
    let change = |old: &Value, _: &mut Ownership| apply_patch(old, &patch);
    let patched = write::update(&mut state.store, &request.kind, &request.key(name), &writer, change)?;
    Ok((StatusCode::OK, patched))
}

/// Applies a configuration (server-side apply). One for an object that does not exist creates it, except through the
/// status subresource.
fn apply(
    state: &mut State,
    request: &ResourceRequest,
    name: &str,
    configuration: Value,
) -> Result<(StatusCode, Arc<Value>), StatusError> {
    if request.query.get("fieldManager").is_empty() {
        let why = "fieldManager: Required value: is required for apply patch";
        return Err(StatusError::invalid(&request.kind, name, why));
    }
    if !configuration["metadata"]["managedFields"].is_null() {
        return Err(StatusError::bad_request("metadata.managedFields must be nil"));
    }
    let key = request.key(name);
    let writer = request.writer(true)?;
    let force = request.query.is_set("force");
    let exists = state.store.get(&request.kind, &key).is_some();
    if !exists && writer.part == Part::Main {
        return apply_new(state, request, &key, configuration, &writer);
    }
    let applied = write::update(&mut state.store, &request.kind, &key, &writer, |old, ownership| {
        let mut new = old.clone();
        for field in ["uid", "resourceVersion"] {
            if let Some(given) = configuration["metadata"].get(field).filter(|given| !given.is_null()) {
                metadata(&mut new).insert(field.to_owned(), given.clone());
            }
        }
        ownership
            .apply(&writer.manager, &mut new, &configuration, force)
            .map_err(|conflicts| StatusError::apply_conflicts(&conflicts))?;
        Ok(new)
    })?;
    Ok((StatusCode::OK, applied))
}

/// Creates the object of a configuration that is applied, unless the configuration has the UID of an earlier object.
fn apply_new(
    state: &mut State,
    request: &ResourceRequest,
    key: &ObjectName,
    mut configuration: Value,
    writer: &Writer,
) -> Result<(StatusCode, Arc<Value>), StatusError> {
    if let Some(uid) = configuration["metadata"]["uid"].as_str().filter(|uid| !uid.is_empty()) {
        let why = format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found");
        return Err(StatusError::conflict(&request.kind, &key.1, &why));
    }
    metadata(&mut configuration).insert("name".to_owned(), key.1.as_str().into());
    let mut ownership = Ownership::default();
    let mut object = configuration.clone();
    // No manager owns a field yet
    drop(ownership.apply(&writer.manager, &mut object, &configuration, true));
    let created = write::create(&mut state.store, &request.kind, &key.0, object, writer, Some(ownership))?;
    Ok((StatusCode::CREATED, created))
}

/// Deletes the selected objects of a collection and returns them as a list.
pub(super) fn delete_collection(
    state: &mut State,
    request: &ResourceRequest,
    body: &[u8],
) -> Result<Value, StatusError> {
    let (selector, options) = (request.selector()?, delete_options(body)?);
    let all = state.store.list_at(&request.kind, state.store.version());
    let mut items = Vec::new();
    for (name, object) in all.iter().filter(|(_, object)| selector.matches(object)) {
        write::delete(&mut state.store, &request.kind, name, &options)?;
        items.push(Value::clone(object));
    }
    let meta = json!({"resourceVersion": state.store.version().to_string()});
    let kind = format!("{}List", request.kind.name);
    Ok(json!({"kind": kind, "apiVersion": request.kind.api_version(), "metadata": meta, "items": items}))
}

/// Parses the `DeleteOptions` in the body of a request; an empty body has none.
pub(super) fn delete_options(body: &[u8]) -> Result<Value, StatusError> {
    if body.is_empty() { Ok(Value::Null) } else { json_body(body) }
}

/// Parses the body of a request as JSON.
pub(super) fn json_body(body: &[u8]) -> Result<Value, StatusError> {
    serde_json::from_slice(body)
        .map_err(|error| StatusError::bad_request(format!("the object provided is unrecognized: {error}")))
}
