//! Patches by media type: JSON merge patch, JSON patch, strategic merge patch and apply.

use serde_json::Value;

use super::kind::Kind;
use super::status_error::StatusError;

/// A patch according to its media type.
#[derive(Debug)]
pub(super) enum Patch {
    Merge(Value),
    Json(json_patch::Patch),
    Strategic(Value),
    Apply(Value),
}

impl Patch {
    pub(super) fn parse(kind: &Kind, media_type: &str, body: &[u8]) -> Result<Self, StatusError> {
        let media_type = media_type.split(';').next().unwrap_or_default().trim();
        match media_type {
            "application/merge-patch+json" => Ok(Self::Merge(json(body)?)),
            "application/json-patch+json" => Ok(Self::Json(json(body)?)),
            // Custom resources have no merge keys
            "application/strategic-merge-patch+json" if !kind.custom => Ok(Self::Strategic(json(body)?)),
            // YAML, of which JSON is a part; clients of this server send JSON
            "application/apply-patch+yaml" => Ok(Self::Apply(json(body)?)),
            _ => Err(StatusError::unsupported_media_type(
                "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
            )),
        }
    }
}

/// Returns the object with a patch applied to it. A server-side apply changes nothing here: it needs the owners.
pub(super) fn apply_patch(old: &Value, patch: &Patch) -> Result<Value, StatusError> {
    let mut new = old.clone();
    match patch {
        Patch::Merge(patch) => json_patch::merge(&mut new, patch),
        Patch::Strategic(patch) => {
            let finalizers = merge_finalizers(&old["metadata"]["finalizers"], &patch["metadata"]["finalizers"]);
            json_patch::merge(&mut new, patch);
            if let (Some(finalizers), Some(slot)) = (finalizers, new.pointer_mut("/metadata/finalizers")) {
                *slot = finalizers;
            }
        }
        Patch::Json(patch) => {
            json_patch::patch(&mut new, patch).map_err(|error| StatusError::patch_failed(&error.to_string()))?;
        }
        Patch::Apply(_) => {}
    }
    Ok(new)
}

/// Merges finalizers, which are a set to strategic merge patches.
fn merge_finalizers(old: &Value, patch: &Value) -> Option<Value> {
    let (old, patch) = (old.as_array()?, patch.as_array()?);
    let added = patch.iter().filter(|name| !old.contains(name));
    Some(old.iter().chain(added).cloned().collect())
}

fn json<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, StatusError> {
    serde_json::from_slice(body).map_err(|error| StatusError::bad_request(format!("error decoding patch: {error}")))
}
