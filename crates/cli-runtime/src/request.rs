//! Requests to the API server; errors name the right or the resource that is missing.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResource;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::core::Status;
use kube::runtime::watcher;
use kube::{Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Objects in each answer of the API server.
const PAGE: u32 = 500;

/// Error of a request to the API server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize)]
pub enum RequestError {
    /// The right is missing.
    #[error("you may not {verb} {resource}; request this right, or use an account that has it")]
    Forbidden {
        /// Verb of the right.
        verb: &'static str,
        /// Resource that the right is for.
        resource: String,
    },
    /// There is no such resource, or no such object.
    #[error("the API server does not serve {resource}")]
    Absent {
        /// Resource that was requested.
        resource: String,
    },
    /// The API server refuses it for another reason, or does not answer.
    #[error("cannot {verb} {resource}: {message}")]
    Failed {
        /// Verb of the request.
        verb: &'static str,
        /// Resource of the request.
        resource: String,
        /// Reason of the API server, or of the connection to it.
        message: String,
    },
}

/// Result of a request.
pub type RequestResult<T> = Result<T, RequestError>;

impl RequestError {
    /// Makes the error of a failed request.
    pub fn new(verb: &'static str, resource: String, error: kube::Error) -> Self {
        if let kube::Error::Api(status) = error {
            return match status {
                status if status.is_forbidden() => Self::Forbidden { verb, resource },
                status if is_not_found(&status) => Self::Absent { resource },
                status => Self::Failed { verb, resource, message: status.message },
            };
        }
        Self::Failed { verb, resource, message: error_chain(&error) }
    }
}

/// Returns whether a watch may not be made: anything else passes, and the watch goes on.
pub fn is_refused_watch(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => status.is_forbidden(),
        watcher::Error::InitialListFailed(_)
        | watcher::Error::WatchStartFailed(_)
        | watcher::Error::WatchFailed(_)
        | watcher::Error::NoResourceVersion => false,
    }
}

/// Returns the message of an error with those of its causes.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        // Some messages already contain that of their source
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        cause = error.source();
    }
    text
}

/// Returns true for "not found". For an API group that it does not serve the API server returns a text, without the
/// reason that it sets otherwise.
fn is_not_found(status: &Status) -> bool {
    status.code == 404
}

/// Returns the resource as `kubectl` and roles name it: `nodes`, `deployments.apps`.
pub fn resource<K: Resource>(kind: &K::DynamicType) -> String {
    match (K::plural(kind), K::group(kind)) {
        (plural, group) if group.is_empty() => plural.into_owned(),
        (plural, group) => format!("{plural}.{group}"),
    }
}

/// Lists all objects that an `Api` reaches and the field selector selects, in pages.
pub async fn list<K>(api: &Api<K>, kind: &K::DynamicType, fields: &str) -> RequestResult<Vec<K>>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let mut params = ListParams::default().limit(PAGE);
    if !fields.is_empty() {
        params = params.fields(fields);
    }
    let mut items = Vec::new();
    loop {
        let page = api.list(&params).await.map_err(|error| RequestError::new("list", resource::<K>(kind), error))?;
        items.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok(items),
        }
    }
}

/// Lists all objects of a kind, of all namespaces.
pub async fn list_all<K>(client: &Client) -> RequestResult<Vec<K>>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    list(&Api::<K>::all(client.clone()), &(), "").await
}

/// Lists the objects of a kind in one namespace, or in all.
pub async fn list_within<K>(client: &Client, namespace: Option<&str>) -> RequestResult<Vec<K>>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned,
{
    let api = match namespace {
        Some(namespace) => Api::<K>::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    list(&api, &(), "").await
}

/// Reads one object; none if it does not exist.
pub async fn get<K>(api: &Api<K>, name: &str) -> RequestResult<Option<K>>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    api.get_opt(name).await.map_err(|error| RequestError::new("get", resource::<K>(&()), error))
}

/// Creates an object, and returns it as the API server has made it.
pub async fn create<K>(api: &Api<K>, object: &K) -> RequestResult<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize,
{
    let created = api.create(&PostParams::default(), object).await;
    created.map_err(|error| RequestError::new("create", resource::<K>(&()), error))
}

/// Deletes an object, which may have gone already.
pub async fn delete<K>(api: &Api<K>, name: &str) -> RequestResult<()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    match api.delete(name, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if is_not_found(&status) => Ok(()),
        deleted => deleted.map(drop).map_err(|error| RequestError::new("delete", resource::<K>(&()), error)),
    }
}

/// Returns the resources that are served in this version of an API group, as `storage.k8s.io/v1`.
pub async fn served_resources(client: &Client, version: &str) -> RequestResult<Vec<APIResource>> {
    match client.list_api_group_resources(version).await {
        Ok(list) => Ok(list.resources),
        Err(kube::Error::Api(status)) if is_not_found(&status) => Ok(Vec::new()),
        Err(error) => Err(RequestError::new("get", version.to_owned(), error)),
    }
}
