//! HTTP requests of the Kubernetes API, parsed: path, parameters, verb and headers.

use std::collections::BTreeMap;

use http::{HeaderMap, Method, header};

/// A path of the resource API, parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) plural: String,
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
    pub(super) subresource: Option<String>,
}

impl Target {
    /// Parses `/api/v1/...` or `/apis/GROUP/VERSION/...`.
    pub(super) fn parse(path: &str) -> Option<Self> {
        let mut parts = path.split('/').filter(|part| !part.is_empty());
        let group = match parts.next()? {
            "api" => "",
            "apis" => parts.next()?,
            _ => return None,
        };
        let version = parts.next()?;
        let rest: Vec<&str> = parts.collect();
        let (namespace, rest) = match rest.as_slice() {
            // The namespaces themselves have the same path as what is in them
            ["namespaces"] | ["namespaces", _] | ["namespaces", _, "status" | "finalize"] => (None, rest.as_slice()),
            ["namespaces", namespace, rest @ ..] => (Some((*namespace).to_owned()), rest),
            rest => (None, rest),
        };
        let (plural, name, subresource) = match *rest {
            [plural] => (plural, None, None),
            [plural, name] => (plural, Some(name), None),
            [plural, name, subresource] => (plural, Some(name), Some(subresource)),
            _ => return None,
        };
        Some(Self {
            group: group.to_owned(),
            version: version.to_owned(),
            plural: plural.to_owned(),
            namespace,
            name: name.map(str::to_owned),
            subresource: subresource.map(str::to_owned),
        })
    }
}

/// The query parameters of a request.
#[derive(Clone, Debug, Default)]
pub(super) struct Query(BTreeMap<String, String>);

impl Query {
    pub(super) fn parse(query: &str) -> Self {
        Self(form_urlencoded::parse(query.as_bytes()).into_owned().collect())
    }

    pub(super) fn get(&self, key: &str) -> &str {
        self.0.get(key).map_or("", String::as_str)
    }

    pub(super) fn is_set(&self, key: &str) -> bool {
        matches!(self.get(key), "true" | "1")
    }
}

/// Returns the verb of a request as in authorisation rules and the audit log.
pub(super) fn request_verb(method: &Method, target: &Target, query: &Query) -> Option<&'static str> {
    let named = target.name.is_some();
    Some(match *method {
        Method::GET if query.is_set("watch") => "watch",
        Method::GET if named => "get",
        Method::GET => "list",
        Method::POST if !named => "create",
        Method::PUT if named => "update",
        Method::PATCH if named => "patch",
        Method::DELETE if named => "delete",
        Method::DELETE => "deletecollection",
        _ => return None,
    })
}

/// Returns true when the `Accept` header wants the metadata of objects alone.
pub(super) fn wants_metadata_only(headers: &HeaderMap) -> bool {
    headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok())
        .is_some_and(|accept| accept.contains("as=PartialObjectMetadata"))
}

/// Returns the field manager of a write: the parameter `fieldManager`, else the first part of the user agent, as on the
/// real server.
pub(super) fn field_manager(query: &Query, headers: &HeaderMap) -> String {
    let named = query.get("fieldManager");
    if !named.is_empty() {
        return named.to_owned();
    }
    headers
        .get(header::USER_AGENT)
        .and_then(|agent| agent.to_str().ok())
        .and_then(|agent| agent.split('/').next())
        .unwrap_or("unknown")
        .to_owned()
}
