//! Reads fields of objects as the API server has them.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::Value;
use topolvm_api::parse_bytes;

/// A text; empty when there is none.
pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// A quantity in bytes, where there is one.
pub(super) fn bytes(object: &Value, pointer: &str) -> Option<u64> {
    parse_bytes(&Quantity(object.pointer(pointer)?.as_str()?.to_owned())).ok()
}

/// Whether somebody has deleted it and somebody else still holds it.
pub(super) fn is_deleting(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some()
}

/// The one of this name.
pub(super) fn named<'a>(list: &'a [Value], name: &str) -> Option<&'a Value> {
    list.iter().find(|object| text(object, "/metadata/name") == name)
}

/// The one of this UID.
pub(super) fn with_uid<'a>(list: &'a [Value], uid: &str) -> Option<&'a Value> {
    list.iter().find(|object| text(object, "/metadata/uid") == uid)
}
