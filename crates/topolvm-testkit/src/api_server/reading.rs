//! Lists, page by page.

use serde_json::{Value, json};

use super::asked::Asked;
use super::refusal::Refusal;
use super::request::wants_metadata_only;
use super::state::State;
use super::store::ObjectName;
use super::watching::shown;

pub(super) fn list(state: &State, asked: &Asked) -> Result<Value, Refusal> {
    let selector = asked.selector()?;
    let limit = asked.query.get("limit").parse::<usize>().unwrap_or_default();
    // A page that goes on from another shows the state of the first
    let (version, from) = match asked.query.get("continue") {
        "" => (state.store.version(), None),
        token => {
            let (version, name) = decode_token(token)?;
            if version < state.store.oldest() {
                return Err(Refusal::page_expired());
            }
            (version, Some(name))
        }
    };
    let mut matching = state
        .store
        .list_at(&asked.kind, version)
        .into_iter()
        .filter(|(name, object)| from.as_ref().is_none_or(|from| name > from) && selector.matches(object));
    let metadata_only = wants_metadata_only(&asked.headers);
    let mut last = None;
    let mut items = Vec::new();
    let page = if limit == 0 { usize::MAX } else { limit };
    for (name, object) in matching.by_ref().take(page) {
        items.push(shown(&object, metadata_only));
        last = Some(name);
    }
    let mut meta = json!({"resourceVersion": version.to_string()});
    let left = matching.count();
    if let (Some(last), true) = (last, left > 0) {
        meta = json!({
            "resourceVersion": version.to_string(), "continue": encode_token(version, &last),
            "remainingItemCount": left,
        });
    }
    let (kind, api_version) = if metadata_only {
        ("PartialObjectMetadataList".to_owned(), "meta.k8s.io/v1".to_owned())
    } else {
        (format!("{}List", asked.kind.name), asked.kind.api_version())
    };
    Ok(json!({"kind": kind, "apiVersion": api_version, "metadata": meta, "items": items}))
}

fn encode_token(version: u64, (namespace, name): &ObjectName) -> String {
    format!("{version}/{namespace}/{name}")
}

fn decode_token(token: &str) -> Result<(u64, ObjectName), Refusal> {
    let mut parts = token.splitn(3, '/');
    let mut next = || parts.next().map(str::to_owned);
    let (version, namespace, name) = (next(), next(), next());
    match (version.and_then(|version| version.parse().ok()), namespace, name) {
        (Some(version), Some(namespace), Some(name)) => Ok((version, (namespace, name))),
        _ => Err(Refusal::bad_request("continue key is not valid")),
    }
}
