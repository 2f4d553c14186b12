//! Takes finalizers off objects without touching those of others.
//!
//! A merge patch replaces the whole list and would drop what somebody else has added since it was read. These patches say which entry of
//! the list they mean; if it is not there any more the API server refuses the whole patch.

use kube::api::Patch;
use kube::core::ObjectMeta;
use serde_json::{Value, json};

use super::error::ReconcileError as Error;

/// The operations of a JSON patch that take these finalizers, each as often as it occurs, off exactly this object. Empty if it has none
/// of them.
pub(super) fn removal(metadata: &ObjectMeta, names: &[&str]) -> Vec<Value> {
    let finalizers = metadata.finalizers.iter().flatten().enumerate();
    let found: Vec<_> = finalizers.filter(|(_, name)| names.contains(&name.as_str())).collect();
    if found.is_empty() {
        return Vec::new();
    }
    let mut operations = vec![json!({"op": "test", "path": "/metadata/uid", "value": metadata.uid})];
    // From the back, so that the places in front stay what they are
    for (place, name) in found.into_iter().rev() {
        let path = format!("/metadata/finalizers/{place}");
        operations.push(json!({"op": "test", "path": path, "value": name}));
        operations.push(json!({"op": "remove", "path": path}));
    }
    operations
}

/// A JSON patch of these operations.
pub(super) fn patch(operations: Vec<Value>) -> Result<Patch<()>, Error> {
    Ok(Patch::Json(serde_json::from_value(Value::Array(operations))?))
}

/// Whether the object has this finalizer.
pub(super) fn has(metadata: &ObjectMeta, name: &str) -> bool {
    metadata.finalizers.iter().flatten().any(|found| found == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(finalizers: &[&str]) -> ObjectMeta {
        ObjectMeta {
            uid: Some("u".to_owned()),
            finalizers: Some(finalizers.iter().map(|&name| name.to_owned()).collect()),
            ..ObjectMeta::default()
        }
    }

    #[test]
    fn every_occurrence_is_taken_off_and_others_stay() {
        let object = json!({"metadata": {"uid": "u", "finalizers": ["a/x", "b/y", "c/z", "a/x"]}});
        let operations = removal(&metadata(&["a/x", "b/y", "c/z", "a/x"]), &["a/x", "c/z"]);
        let mut patched = object;
        let patch: json_patch::Patch = serde_json::from_value(operations.into()).unwrap();
        json_patch::patch(&mut patched, &patch).unwrap();
        assert_eq!(patched["metadata"]["finalizers"], json!(["b/y"]));
    }

    #[test]
    fn a_list_that_has_changed_or_another_object_is_not_touched() {
        let operations = removal(&metadata(&["a/x"]), &["a/x"]);
        let patch: json_patch::Patch = serde_json::from_value(operations.into()).unwrap();
        for other in [
            json!({"metadata": {"uid": "u", "finalizers": ["b/y", "a/x"]}}),
            json!({"metadata": {"uid": "v", "finalizers": ["a/x"]}}),
        ] {
            json_patch::patch(&mut other.clone(), &patch).unwrap_err();
        }
    }

    #[test]
    fn nothing_is_written_when_there_is_nothing_to_take_off() {
        assert_eq!(removal(&metadata(&["b/y"]), &["a/x"]), Vec::<Value>::new());
    }
}
