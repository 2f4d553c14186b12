//! Lists of objects, and why one cannot be had.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use kube::api::{Api, ListParams};
use kube::core::Status;
use kube::{Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Objects in each answer of the API server.
const PAGE: u32 = 500;

/// Why something of the cluster cannot be seen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize)]
pub(crate) enum Gap {
    #[error("you may not {verb} {resource}; ask for this right, or run it as somebody who has it")]
    Forbidden { verb: &'static str, resource: String },
    #[error("the API server does not know {resource}")]
    Absent { resource: String },
    #[error("cannot {verb} {resource}: {message}")]
    Failed { verb: &'static str, resource: String, message: String },
}

/// What was read, or why it could not be.
pub(crate) type Seen<T> = Result<T, Gap>;

impl Gap {
    /// Why this request has failed.
    pub(crate) fn new(verb: &'static str, resource: String, error: kube::Error) -> Self {
        if let kube::Error::Api(status) = error {
            return match status {
                status if status.is_forbidden() => Self::Forbidden { verb, resource },
                status if is_absent(&status) => Self::Absent { resource },
                status => Self::Failed { verb, resource, message: status.message },
            };
        }
        let mut message = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(error) = cause {
            message = format!("{message}: {error}");
            cause = error.source();
        }
        Self::Failed { verb, resource, message }
    }
}

/// Whether the API server has not got what was asked for. Of a group that it does not serve it says so in a text, without
/// the reason that it gives otherwise.
pub(crate) fn is_absent(status: &Status) -> bool {
    status.code == 404
}

/// A kind as `kubectl` and roles call it: `nodes`, `deployments.apps`.
pub(crate) fn resource<K: Resource>(kind: &K::DynamicType) -> String {
    match (K::plural(kind), K::group(kind)) {
        (plural, group) if group.is_empty() => plural.into_owned(),
        (plural, group) => format!("{plural}.{group}"),
    }
}

/// All objects that an `Api` reaches and `fields` selects, in pages.
pub(crate) async fn list_of<K>(api: &Api<K>, kind: &K::DynamicType, fields: &str) -> Seen<Vec<K>>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let mut params = ListParams::default().limit(PAGE);
    if !fields.is_empty() {
        params = params.fields(fields);
    }
    let mut items = Vec::new();
    loop {
        let page = api.list(&params).await.map_err(|error| Gap::new("list", resource::<K>(kind), error))?;
        items.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok(items),
        }
    }
}

/// All objects of a kind, of all namespaces.
pub(crate) async fn all<K>(client: &Client) -> Seen<Vec<K>>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    list_of(&Api::<K>::all(client.clone()), &(), "").await
}

/// All objects of a kind in one namespace, or in all.
pub(crate) async fn within<K>(client: &Client, namespace: Option<&str>) -> Seen<Vec<K>>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let api = match namespace {
        Some(namespace) => Api::<K>::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    list_of(&api, &(), "").await
}

/// One object, nothing where there is none.
pub(crate) async fn one<K>(api: &Api<K>, name: &str) -> Seen<Option<K>>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    api.get_opt(name).await.map_err(|error| Gap::new("get", resource::<K>(&()), error))
}
