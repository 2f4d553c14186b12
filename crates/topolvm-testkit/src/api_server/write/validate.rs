//! Checks of a write: types, identity, preconditions and finalizers.

use serde_json::{Map, Value};

use super::super::json::{as_map, metadata};
use super::super::kind::Kind;
use super::super::status_error::StatusError;
use super::stored_form::{FIXED, is_deleting};

/// Checks that `apiVersion` and `kind` of a body are those of the path; missing ones are filled in.
pub(super) fn check_types(kind: &Kind, object: &mut Value) -> Result<(), StatusError> {
    if !object.is_object() {
        return Err(StatusError::bad_request("the body is not a JSON object"));
    }
    let (group_version, map) = (kind.api_version(), as_map(object));
    for (field, expected) in [("apiVersion", group_version.as_str()), ("kind", kind.name.as_str())] {
        let given = map.get(field).and_then(Value::as_str).unwrap_or_default();
        if !given.is_empty() && given != expected {
            let what = if field == "kind" { "kind" } else { "API version" };
            return Err(StatusError::bad_request(format!(
                "the {what} in the data ({given}) does not match the expected {what} ({expected})"
            )));
        }
        map.insert(field.to_owned(), expected.into());
    }
    Ok(())
}

/// Checks metadata of a new object: its namespace is that of the path, and it has no version.
pub(super) fn check_new(meta: &Map<String, Value>, namespace: &str, may_have_version: bool) -> Result<(), StatusError> {
    let given = |field: &str| meta.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
    if given("namespace").is_some_and(|given| given != namespace) {
        let why = "the namespace of the provided object does not match the namespace sent on the request";
        return Err(StatusError::bad_request(why));
    }
    if !may_have_version && given("resourceVersion").is_some() {
        return Err(StatusError::bad_request("resourceVersion should not be set on objects to be created"));
    }
    Ok(())
}

/// Checks that a new object has the name, UID and `resourceVersion` of the old one where it has any, and gives it the
/// fixed metadata of the old one.
pub(super) fn check_identity(kind: &Kind, name: &str, old: &Value, new: &mut Value) -> Result<(), StatusError> {
    let old = &old["metadata"];
    let new = metadata(new);
    let given = |field: &str| new.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
    if let Some(given) = given("name")
        && given != name
    {
        return Err(StatusError::bad_request(format!(
            "the name of the object ({given}) does not match the name on the URL ({name})"
        )));
    }
    if let (Some(given), Some(found)) = (given("uid"), old["uid"].as_str())
        && given != found
    {
        let why = format!("Precondition failed: UID in precondition: {given}, UID in object meta: {found}");
        return Err(StatusError::conflict(kind, name, &why));
    }
    if given("resourceVersion").is_some_and(|given| Some(given) != old["resourceVersion"].as_str()) {
        return Err(StatusError::modified(kind, name));
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

/// Checks the preconditions of a deletion: UID and `resourceVersion`.
pub(super) fn check_preconditions(kind: &Kind, name: &str, object: &Value, options: &Value) -> Result<(), StatusError> {
    for (field, label) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
        let (wanted, found) = (&options["preconditions"][field], &object["metadata"][field]);
        if let (Some(wanted), Some(found)) = (wanted.as_str(), found.as_str())
            && wanted != found
        {
            let why =
                format!("Precondition failed: {label} in precondition: {wanted}, {label} in object meta: {found}");
            return Err(StatusError::conflict(kind, name, &why));
        }
    }
    Ok(())
}

/// Checks that no finalizer is added to an object that is being deleted.
pub(super) fn check_finalizers(kind: &Kind, name: &str, old: &Value, new: &Value) -> Result<(), StatusError> {
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
    Err(StatusError::invalid(kind, name, &why))
}
