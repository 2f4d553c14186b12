//! Reads fields of objects as the API server has them.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::Value;
use topolvm_api::parse_bytes;

/// Returns the text at a JSON pointer; empty when there is none.
pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the quantity at a JSON pointer in bytes.
pub(super) fn bytes(object: &Value, pointer: &str) -> Option<u64> {
    parse_bytes(&Quantity(object.pointer(pointer)?.as_str()?.to_owned())).ok()
}

/// Returns true if the object is deleted and finalizers remain.
pub(super) fn is_deleting(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some()
}

/// Finds an object by its name.
pub(super) fn find_by_name<'a>(list: &'a [Value], name: &str) -> Option<&'a Value> {
    list.iter().find(|object| text(object, "/metadata/name") == name)
}

/// Returns the name of the LV of a LogicalVolume: its UID, or that of the object that an administrator created it for.
pub(super) fn volume_id(object: &Value) -> &str {
    Some(text(object, "/status/volumeID")).filter(|id| !id.is_empty()).unwrap_or_else(|| text(object, "/metadata/uid"))
}

/// Finds the LogicalVolume of an LV.
pub(super) fn find_by_volume_id<'a>(list: &'a [Value], id: &str) -> Option<&'a Value> {
    list.iter().find(|object| volume_id(object) == id)
}

/// Finds an object by its UID.
pub(super) fn find_by_uid<'a>(list: &'a [Value], uid: &str) -> Option<&'a Value> {
    list.iter().find(|object| text(object, "/metadata/uid") == uid)
}
