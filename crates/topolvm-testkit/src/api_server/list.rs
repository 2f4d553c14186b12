//! Lists, page by page.

use std::sync::Arc;

use serde_json::{Value, json};

use super::http_request::wants_metadata_only;
use super::resource_request::ResourceRequest;
use super::state::State;
use super::status_error::StatusError;
use super::store::ObjectName;
use super::watch::represent;

/// A page of a list: objects by name.
type Page = Vec<(ObjectName, Arc<Value>)>;

/// Lists the selected objects, at most `limit` of them, as they were at the time of the first page.
pub(super) fn list(state: &State, request: &ResourceRequest) -> Result<Value, StatusError> {
    let (version, from) = parse_continue(state, request)?;
    let (page, left) = read_page(state, request, version, from.as_ref())?;
    let metadata_only = wants_metadata_only(&request.headers);
    let mut meta = json!({"resourceVersion": version.to_string()});
    if let (Some((last, _)), true) = (page.last(), left > 0) {
        meta["continue"] = encode_token(version, last).into();
        meta["remainingItemCount"] = left.into();
    }
    let items: Vec<Value> = page.iter().map(|(_, object)| represent(object, metadata_only)).collect();
    let (kind, api_version) = if metadata_only {
        ("PartialObjectMetadataList".to_owned(), "meta.k8s.io/v1".to_owned())
    } else {
        (format!("{}List", request.kind.name), request.kind.api_version())
    };
    Ok(json!({"kind": kind, "apiVersion": api_version, "metadata": meta, "items": items}))
}

/// Returns the version that a page shows, which is that of the first page, and the last object of the page before.
fn parse_continue(state: &State, request: &ResourceRequest) -> Result<(u64, Option<ObjectName>), StatusError> {
    let token = request.query.get("continue");
    if token.is_empty() {
        return Ok((state.store.version(), None));
    }
    let (version, name) = decode_token(token)?;
    if version < state.store.oldest() {
        return Err(StatusError::page_expired());
    }
    Ok((version, Some(name)))
}

/// Returns a page of the selected objects after `from`, and the number of those that are left after it.
fn read_page(
    state: &State,
    request: &ResourceRequest,
    version: u64,
    from: Option<&ObjectName>,
) -> Result<(Page, usize), StatusError> {
    let selector = request.selector()?;
    let limit = request.query.get("limit").parse::<usize>().unwrap_or_default();
    let objects = state.store.list_at(&request.kind, version).into_iter();
    let mut matching = objects.filter(|(name, object)| from.is_none_or(|from| name > from) && selector.matches(object));
    let page = matching.by_ref().take(if limit == 0 { usize::MAX } else { limit }).collect();
    Ok((page, matching.count()))
}

fn encode_token(version: u64, (namespace, name): &ObjectName) -> String {
    format!("{version}/{namespace}/{name}")
}

fn decode_token(token: &str) -> Result<(u64, ObjectName), StatusError> {
    let mut parts = token.splitn(3, '/');
    let mut next = || parts.next().map(str::to_owned);
    let (version, namespace, name) = (next(), next(), next());
    match (version.and_then(|version| version.parse().ok()), namespace, name) {
        (Some(version), Some(namespace), Some(name)) => Ok((version, (namespace, name))),
        _ => Err(StatusError::bad_request("continue key is not valid")),
    }
}
