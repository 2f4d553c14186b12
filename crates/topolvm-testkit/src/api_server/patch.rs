//! The kinds of patch.

use serde_json::Value;

use super::kind::Kind;
use super::refusal::Refusal;

/// A patch as its media type says.
#[derive(Debug)]
pub(super) enum Patch {
    Merge(Value),
    Json(json_patch::Patch),
    Strategic(Value),
    Apply(Value),
}

impl Patch {
    pub(super) fn parse(kind: &Kind, media_type: &str, body: &[u8]) -> Result<Self, Refusal> {
        let media_type = media_type.split(';').next().unwrap_or_default().trim();
        match media_type {
            "application/merge-patch+json" => Ok(Self::Merge(json(body)?)),
            "application/json-patch+json" => Ok(Self::Json(json(body)?)),
            // Custom resources have no merge keys
            "application/strategic-merge-patch+json" if !kind.custom => Ok(Self::Strategic(json(body)?)),
            // YAML, of which JSON is a part; clients of this server send JSON
            "application/apply-patch+yaml" => Ok(Self::Apply(json(body)?)),
            _ => Err(Refusal::unsupported_media_type(
                "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
            )),
        }
    }
}

/// The object with a patch that is no apply on it.
pub(super) fn patched(old: &Value, patch: &Patch) -> Result<Value, Refusal> {
    let mut new = old.clone();
    match patch {
        Patch::Merge(patch) => json_patch::merge(&mut new, patch),
        Patch::Strategic(patch) => {
            let finalizers = union(&old["metadata"]["finalizers"], &patch["metadata"]["finalizers"]);
            json_patch::merge(&mut new, patch);
            if let (Some(finalizers), Some(slot)) = (finalizers, new.pointer_mut("/metadata/finalizers")) {
                *slot = finalizers;
            }
        }
        Patch::Json(patch) => {
            json_patch::patch(&mut new, patch).map_err(|error| Refusal::patch_failed(&error.to_string()))?;
        }
        Patch::Apply(_) => {}
    }
    Ok(new)
}

/// Finalizers are a set to strategic merge patches.
fn union(old: &Value, patch: &Value) -> Option<Value> {
    let (old, patch) = (old.as_array()?, patch.as_array()?);
    let added = patch.iter().filter(|name| !old.contains(name));
    Some(old.iter().chain(added).cloned().collect())
}

fn json<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| Refusal::bad_request(format!("error decoding patch: {error}")))
}
