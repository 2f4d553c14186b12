//! Client of the API server that retries failed requests until a timeout or until they are refused.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::runtime::wait::await_condition;
use kube::{Api, Client, Error};
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

/// Timeout of one request, after which it is sent again.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const RETRY_INTERVAL: Duration = Duration::from_millis(300);

/// Kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Claim,
    Volume,
    Snapshot,
    Content,
}

impl Kind {
    fn resource(self) -> ApiResource {
        let (group, kind) = match self {
            Self::Claim => ("", "PersistentVolumeClaim"),
            Self::Volume => ("", "PersistentVolume"),
            Self::Snapshot => ("snapshot.storage.k8s.io", "VolumeSnapshot"),
            Self::Content => ("snapshot.storage.k8s.io", "VolumeSnapshotContent"),
        };
        ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1", kind))
    }

    fn is_namespaced(self) -> bool {
        matches!(self, Self::Claim | Self::Snapshot)
    }
}

/// Outcome of an attempt.
enum Attempt<T> {
    Done(T),
    Retry(String),
    Refused(Error),
}

/// A retrying client of the API server. Clones share the connection.
#[derive(Clone)]
pub(super) struct Objects {
    client: Client,
    patience: Duration,
}

impl Objects {
    /// Returns a client that retries every request until a timeout.
    pub(super) fn new(client: Client, patience: Duration) -> Self {
        Self { client, patience }
    }

    fn api(&self, kind: Kind) -> Api<DynamicObject> {
        let resource = kind.resource();
        if kind.is_namespaced() {
            Api::namespaced_with(self.client.clone(), "default", &resource)
        } else {
            Api::all_with(self.client.clone(), &resource)
        }
    }

    /// Creates an object and returns its UID. An object that already exists means that an answer was lost.
    pub(super) async fn create(&self, kind: Kind, object: &Value) -> Result<String> {
        let object: DynamicObject = serde_json::from_value(object.clone()).context("not an object")?;
        let name = object.metadata.name.clone().unwrap_or_default();
        let (api, params) = (self.api(kind), PostParams::default());
        self.retry("create", || async {
            let made = match api.create(&params, &object).await {
                Err(Error::Api(status)) if status.is_already_exists() => api.get(&name).await?,
                answer => answer?,
            };
            Ok(made.metadata.uid.unwrap_or_default())
        })
        .await
    }

    /// Applies a merge patch to an object.
    pub(super) async fn patch(&self, kind: Kind, name: &str, patch: &Value) -> Result<()> {
        let (api, params, patch) = (self.api(kind), PatchParams::default(), Patch::Merge(patch));
        self.retry("change", || async { api.patch(name, &params, &patch).await.map(drop) }).await
    }

    /// Deletes an object, if it exists.
    pub(super) async fn delete(&self, kind: Kind, name: &str) -> Result<()> {
        let (api, params) = (self.api(kind), DeleteParams::default());
        self.retry("delete", || async {
            match api.delete(name, &params).await {
                Err(Error::Api(status)) if is_missing(&status) => Ok(()),
                answer => answer.map(drop),
            }
        })
        .await
    }

    /// Reads an object, if it exists.
    pub(super) async fn get(&self, kind: Kind, name: &str) -> Result<Option<DynamicObject>> {
        let api = self.api(kind);
        self.retry("read", || async {
            match api.get(name).await {
                Err(Error::Api(status)) if is_missing(&status) => Ok(None),
                answer => answer.map(Some),
            }
        })
        .await
    }

    /// Waits until an object fulfils a condition; `None` is an object that is not there.
    pub(super) async fn wait_until(
        &self,
        kind: Kind,
        name: &str,
        what: &str,
        is_so: impl Fn(Option<&DynamicObject>) -> bool,
    ) -> Result<()> {
        let end = Instant::now() + self.patience;
        while Instant::now() < end {
            // A watch may have died without a sign
            match timeout(REQUEST_TIMEOUT * 2, await_condition(self.api(kind), name, &is_so)).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(_)) => sleep(RETRY_INTERVAL).await,
                Err(_elapsed) => {}
            }
        }
        let now = self.get(kind, name).await?;
        bail!("{name} is not {what} after {:?}: {}", self.patience, serde_json::to_string(&now)?)
    }

    /// Waits until an object is deleted.
    pub(super) async fn wait_until_gone(&self, kind: Kind, name: &str) -> Result<()> {
        self.wait_until(kind, name, "gone", |object| object.is_none()).await
    }

    async fn retry<T, F>(&self, what: &str, mut attempt: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = kube::Result<T>>,
    {
        let end = Instant::now() + self.patience;
        loop {
            let reason = match classify(timeout(REQUEST_TIMEOUT, attempt()).await) {
                Attempt::Done(answer) => return Ok(answer),
                Attempt::Refused(error) => {
                    return Err(error).with_context(|| format!("the API server refused to {what}"));
                }
                Attempt::Retry(reason) => reason,
            };
            if Instant::now() >= end {
                bail!("the API server could not {what} for {:?}: {reason}", self.patience);
            }
            sleep(RETRY_INTERVAL).await;
        }
    }
}

/// Returns the text at a JSON pointer of an object; empty when there is none.
pub(super) fn text<'a>(object: &'a DynamicObject, pointer: &str) -> &'a str {
    object.data.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Returns true if the API server answers that there is no such object. While it starts it also answers 404, without a
/// name, for a kind that it does not serve yet.
fn is_missing(status: &kube::core::Status) -> bool {
    status.code == 404 && status.details.as_ref().is_some_and(|details| !details.name.is_empty())
}

fn classify<T>(answer: Result<kube::Result<T>, tokio::time::error::Elapsed>) -> Attempt<T> {
    match answer {
        Ok(Ok(answer)) => Attempt::Done(answer),
        // Conflicts, and refusals of a server that has no rights and kinds loaded yet
        Ok(Err(Error::Api(status))) if !matches!(status.code, 401 | 403 | 404 | 409 | 429 | 500..) => {
            Attempt::Refused(Error::Api(status))
        }
        Ok(Err(error)) => Attempt::Retry(format!("{:#}", anyhow::Error::from(error))),
        Err(_elapsed) => Attempt::Retry(format!("no answer within {REQUEST_TIMEOUT:?}")),
    }
}
