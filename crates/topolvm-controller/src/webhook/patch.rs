//! From what an object should have to the smallest JSON patch that gives it that. Pure.

use json_patch::jsonptr::{PointerBuf, Token};
use json_patch::{AddOperation, PatchOperation};
use serde_json::Value;

/// What puts `wanted` over what is at `path` in an object, and touches nothing else. Objects are descended into; everything
/// else that differs is set. Null counts as absent, as it does to the API server.
pub(crate) fn overlay(path: PointerBuf, existing: &Value, wanted: Value) -> Vec<PatchOperation> {
    let mut operations = Vec::new();
    descend(path, existing, wanted, &mut operations);
    operations
}

fn descend(path: PointerBuf, existing: &Value, wanted: Value, into: &mut Vec<PatchOperation>) {
    match (existing, wanted) {
        (Value::Object(existing), Value::Object(wanted)) => {
            for (key, value) in wanted {
                let path = path.with_trailing_token(Token::new(&key));
                descend(path, existing.get(&key).unwrap_or(&Value::Null), value, into);
            }
        }
        (existing, wanted) if *existing == wanted => {}
        // "add" replaces a member that is there
        (_, wanted) => into.push(add(path, wanted)),
    }
}

/// Sets a member of an object, or inserts into an array.
pub(crate) fn add(path: PointerBuf, value: Value) -> PatchOperation {
    PatchOperation::Add(AddOperation { path, value })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn patch(existing: &Value, wanted: &Value) -> Value {
        let patch = json_patch::Patch(overlay(PointerBuf::new(), existing, wanted.clone()));
        let mut patched = existing.clone();
        json_patch::patch(&mut patched, &patch).unwrap();
        let mut merged = existing.clone();
        json_patch::merge(&mut merged, wanted);
        assert_eq!(patched, merged);
        serde_json::to_value(patch).unwrap()
    }

    #[rstest]
    #[case::the_parent_is_missing(json!({}), json!([{"op": "add", "path": "/a", "value": {"x/y~z": "1", "b": {"c": "2"}}}]))]
    #[case::null_is_missing(json!({"a": null}), json!([{"op": "add", "path": "/a", "value": {"x/y~z": "1", "b": {"c": "2"}}}]))]
    #[case::only_what_is_missing(
        json!({"a": {"x/y~z": "1", "b": {"d": 0}}, "e": 0}),
        json!([{"op": "add", "path": "/a/b/c", "value": "2"}])
    )]
    #[case::keys_are_escaped(
        json!({"a": {"b": {"c": "2"}}}),
        json!([{"op": "add", "path": "/a/x~1y~0z", "value": "1"}])
    )]
    #[case::other_values_are_replaced(
        json!({"a": {"b": {"c": 3}, "x/y~z": "1"}}),
        json!([{"op": "add", "path": "/a/b/c", "value": "2"}])
    )]
    #[case::nothing_to_do(json!({"a": {"x/y~z": "1", "b": {"c": "2"}}}), json!([]))]
    fn a_patch_says_only_what_differs(#[case] existing: Value, #[case] expected: Value) {
        let wanted = json!({"a": {"x/y~z": "1", "b": {"c": "2"}}});
        assert_eq!(patch(&existing, &wanted), expected);
    }
}
