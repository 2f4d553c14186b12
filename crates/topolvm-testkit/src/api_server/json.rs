//! JSON values that are changed as objects.

use serde_json::{Map, Value};

/// Returns the `metadata` of an object to be changed; anything but an object is replaced by an empty one.
pub(super) fn metadata(object: &mut Value) -> &mut Map<String, Value> {
    as_map(as_map(object).entry("metadata").or_insert(Value::Null))
}

/// Returns a value as a JSON object to be changed; anything but an object is replaced by an empty one.
pub(super) fn as_map(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    #[expect(clippy::unreachable, reason = "made an object above")]
    let Value::Object(map) = value else { unreachable!() };
    map
}
