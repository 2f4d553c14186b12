//! Merge patches of JSON values (RFC 7386).

use serde_json::{Map, Value};

/// Returns the value with a merge patch applied.
pub(super) fn merge(value: Value, patch: Value) -> Value {
    let Value::Object(patch) = patch else { return patch };
    let mut members = match value {
        Value::Object(members) => members,
        _ => Map::new(),
    };
    for (key, patch) in patch {
        if patch.is_null() {
            members.remove(&key);
        } else {
            let old = members.remove(&key).unwrap_or(Value::Null);
            members.insert(key, merge(old, patch));
        }
    }
    Value::Object(members)
}
