//! Builds JSON patches that add members to an object and touch nothing else. Pure.

use json_patch::jsonptr::{PointerBuf, Token};
use json_patch::{AddOperation, PatchOperation};
use serde_json::{Map, Value};

/// Returns operations that set these members of the object at `path`. Where there is no object yet, or null, they
/// create it.
pub(crate) fn set_members(path: PointerBuf, exists: bool, members: Map<String, Value>) -> Vec<PatchOperation> {
    if !exists {
        return vec![add(path, members.into())];
    }
    members.into_iter().map(|(key, value)| add(path.with_trailing_token(Token::new(&key)), value)).collect()
}

/// Returns the operation that sets a member of an object, or inserts into an array.
pub(crate) fn add(path: PointerBuf, value: Value) -> PatchOperation {
    PatchOperation::Add(AddOperation { path, value })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case::nothing(json!({}), false)]
    #[case::null(json!({"a": null}), false)]
    #[case::empty(json!({"a": {}}), true)]
    #[case::others_stay(json!({"a": {"c": [1], "d": "2"}, "e": 0}), true)]
    #[case::other_values_are_replaced(json!({"a": {"x/y~z": "7"}}), true)]
    fn an_object_has_the_members_and_all_that_it_had(#[case] before: Value, #[case] exists: bool) {
        let members = json!({"x/y~z": "1", "b": {"c": "2"}}).as_object().unwrap().clone();
        let patch = json_patch::Patch(set_members(PointerBuf::from_tokens(["a"]), exists, members.clone()));
        let mut patched = before.clone();
        json_patch::patch(&mut patched, &patch).unwrap();
        let mut merged = before;
        json_patch::merge(&mut merged, &json!({"a": members}));
        assert_eq!(patched, merged);
    }
}
