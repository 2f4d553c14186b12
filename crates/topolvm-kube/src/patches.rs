//! JSON patches that change only their own entry: of finalizers, labels, annotations and the status.
//!
//! A merge patch replaces the whole list of finalizers and would drop finalizers that another client has added since it
//! was read. These patches name the entry and the object that they change; if the entry no longer exists, the API
//! server refuses the whole patch.

use std::collections::BTreeMap;

use json_patch::jsonptr::PointerBuf;
use json_patch::{AddOperation, PatchOperation, RemoveOperation, TestOperation};
use kube::api::Patch;
use kube::core::ObjectMeta;
use serde::Serialize;
use serde_json::{Value, json};

/// Returns the JSON patch of these operations.
pub fn json_patch(operations: Vec<PatchOperation>) -> Patch<()> {
    Patch::Json(json_patch::Patch(operations))
}

/// Returns whether the object has this finalizer.
pub fn has_finalizer(metadata: &ObjectMeta, name: &str) -> bool {
    metadata.finalizers.iter().flatten().any(|found| found == name)
}

/// Returns the operations that put a finalizer on the object, none if it has it. They fail when the object has changed
/// meanwhile.
pub fn add_finalizer(metadata: &ObjectMeta, name: &str) -> Vec<PatchOperation> {
    if has_finalizer(metadata, name) {
        return Vec::new();
    }
    let is_first = metadata.finalizers.as_ref().is_none_or(Vec::is_empty);
    let added = if is_first {
        add(["metadata", "finalizers"], json!([name]))
    } else {
        add(["metadata", "finalizers", "-"], json!(name))
    };
    vec![test_version(metadata), added]
}

/// Returns the operations that take these finalizers, each as often as it occurs, off exactly this object. Empty if it
/// has none of them.
pub fn remove_finalizers(metadata: &ObjectMeta, names: &[&str]) -> Vec<PatchOperation> {
    let finalizers = metadata.finalizers.iter().flatten().enumerate();
    let found: Vec<_> = finalizers.filter(|(_, name)| names.contains(&name.as_str())).collect();
    if found.is_empty() {
        return Vec::new();
    }
    let mut operations = vec![test(["metadata", "uid"], json!(metadata.uid))];
    // From the back, so that the places in front stay what they are
    for (place, name) in found.into_iter().rev() {
        let place = place.to_string();
        let path = ["metadata", "finalizers", &place];
        operations.push(test(path, json!(name)));
        operations.push(PatchOperation::Remove(RemoveOperation { path: PointerBuf::from_tokens(path) }));
    }
    operations
}

/// Returns the operations that set a label of exactly this object.
pub fn set_label(metadata: &ObjectMeta, key: &str, value: &str) -> Vec<PatchOperation> {
    set_entry(metadata, "labels", metadata.labels.as_ref(), key, value)
}

/// Returns the operations that set an annotation of exactly this object.
pub fn set_annotation(metadata: &ObjectMeta, key: &str, value: &str) -> Vec<PatchOperation> {
    set_entry(metadata, "annotations", metadata.annotations.as_ref(), key, value)
}

/// Returns the operations that remove this annotation of exactly this object. They fail when it has another value by
/// now.
pub fn remove_annotation(metadata: &ObjectMeta, key: &str, value: &str) -> Vec<PatchOperation> {
    let path = ["metadata", "annotations", key];
    let removal = PatchOperation::Remove(RemoveOperation { path: PointerBuf::from_tokens(path) });
    vec![test(["metadata", "uid"], json!(metadata.uid)), test(path, json!(value)), removal]
}

/// Returns the operations that replace the status of exactly this object.
pub fn replace_status(metadata: &ObjectMeta, status: &impl Serialize) -> Vec<PatchOperation> {
    vec![test(["metadata", "uid"], json!(metadata.uid)), add(["status"], json!(status))]
}

/// Returns the operations that replace the status of the object. They fail when the object has changed meanwhile.
pub fn replace_status_if_unchanged(metadata: &ObjectMeta, status: &impl Serialize) -> Vec<PatchOperation> {
    vec![test_version(metadata), add(["status"], json!(status))]
}

fn set_entry(
    metadata: &ObjectMeta,
    map: &str,
    entries: Option<&BTreeMap<String, String>>,
    key: &str,
    value: &str,
) -> Vec<PatchOperation> {
    match entries {
        Some(_) => {
            vec![test(["metadata", "uid"], json!(metadata.uid)), add(["metadata", map, key], json!(value))]
        }
        // The whole map is added, which would overwrite entries that another client has added meanwhile
        None => vec![test_version(metadata), add(["metadata", map], json!({key: value}))],
    }
}

/// Fails when the object has changed, and when it is another one: a version is never that of two objects.
fn test_version(metadata: &ObjectMeta) -> PatchOperation {
    test(["metadata", "resourceVersion"], json!(metadata.resource_version))
}

fn test<const N: usize>(path: [&str; N], value: Value) -> PatchOperation {
    PatchOperation::Test(TestOperation { path: PointerBuf::from_tokens(path), value })
}

fn add<const N: usize>(path: [&str; N], value: Value) -> PatchOperation {
    PatchOperation::Add(AddOperation { path: PointerBuf::from_tokens(path), value })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(finalizers: &[&str]) -> ObjectMeta {
        ObjectMeta {
            uid: Some("u".to_owned()),
            resource_version: Some("7".to_owned()),
            finalizers: Some(finalizers.iter().map(|&name| name.to_owned()).collect()),
            ..ObjectMeta::default()
        }
    }

    /// Applies the operations to an object with this metadata, and returns what becomes of its metadata.
    fn apply(operations: &[PatchOperation], metadata: &Value) -> Result<Value, json_patch::PatchError> {
        let mut object = json!({"metadata": metadata});
        json_patch::patch(&mut object, operations)?;
        Ok(object["metadata"].take())
    }

    #[test]
    fn every_occurrence_is_removed_and_others_stay() {
        let finalizers = ["a/x", "b/y", "c/z", "a/x"];
        let operations = remove_finalizers(&metadata(&finalizers), &["a/x", "c/z"]);
        let patched = apply(&operations, &json!({"uid": "u", "finalizers": finalizers})).unwrap();
        assert_eq!(patched["finalizers"], json!(["b/y"]));
    }

    #[test]
    fn a_list_that_has_changed_or_another_object_is_not_touched() {
        let operations = remove_finalizers(&metadata(&["a/x"]), &["a/x"]);
        for other in [json!({"uid": "u", "finalizers": ["b/y", "a/x"]}), json!({"uid": "v", "finalizers": ["a/x"]})] {
            apply(&operations, &other).unwrap_err();
        }
    }

    #[test]
    fn nothing_is_written_when_there_is_nothing_to_remove() {
        assert_eq!(remove_finalizers(&metadata(&["b/y"]), &["a/x"]), Vec::<PatchOperation>::new());
    }

    #[test]
    fn finalizer_patch_keeps_existing_ones_and_checks_the_version() {
        for present in [Vec::new(), vec!["b/y"]] {
            let operations = add_finalizer(&metadata(&present), "a/x");
            let mut object = json!({"resourceVersion": "7", "finalizers": present});
            let patched = apply(&operations, &object).unwrap();
            let expected = [present, vec!["a/x"]].concat();
            assert_eq!(patched["finalizers"], json!(expected));
            object["resourceVersion"] = json!("8");
            apply(&operations, &object).unwrap_err();
        }
        assert_eq!(add_finalizer(&metadata(&["a/x"]), "a/x"), Vec::<PatchOperation>::new());
    }

    #[test]
    fn annotation_is_removed_unless_it_has_another_value() {
        let operations = remove_annotation(&metadata(&[]), "a/x", "1");
        let object = json!({"uid": "u", "annotations": {"a/x": "1", "b/y": "3"}});
        assert_eq!(apply(&operations, &object).unwrap()["annotations"], json!({"b/y": "3"}));
        for other in [
            json!({"uid": "u", "annotations": {"a/x": "2"}}),
            json!({"uid": "u"}),
            json!({"uid": "v", "annotations": {"a/x": "1"}}),
        ] {
            apply(&operations, &other).unwrap_err();
        }
    }

    #[test]
    fn status_is_replaced_unless_the_object_has_changed() {
        let operations = replace_status_if_unchanged(&metadata(&[]), &json!({"phase": "Running"}));
        let mut object = json!({"metadata": {"uid": "u", "resourceVersion": "7"}, "status": {"phase": "Pending"}});
        json_patch::patch(&mut object, &operations).unwrap();
        assert_eq!(object["status"], json!({"phase": "Running"}));
        object["metadata"]["resourceVersion"] = json!("8");
        json_patch::patch(&mut object, &operations).unwrap_err();
    }

    #[test]
    fn a_label_is_set_beside_those_that_are_there() {
        let mut meta = metadata(&[]);
        let first = set_label(&meta, "a/x", "1");
        assert_eq!(apply(&first, &json!({"resourceVersion": "7"})).unwrap()["labels"], json!({"a/x": "1"}));
        apply(&first, &json!({"resourceVersion": "8", "labels": {"b/y": "2"}})).unwrap_err();

        meta.labels = Some([("b/y".to_owned(), "2".to_owned())].into());
        let second = set_label(&meta, "a/x", "1");
        let patched = apply(&second, &json!({"uid": "u", "labels": {"b/y": "2", "c/z": "3"}})).unwrap();
        assert_eq!(patched["labels"], json!({"a/x": "1", "b/y": "2", "c/z": "3"}));
        apply(&second, &json!({"uid": "v", "labels": {"b/y": "2"}})).unwrap_err();
    }
}
