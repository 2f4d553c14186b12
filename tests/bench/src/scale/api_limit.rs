//! Makes the writes of a run from many connections at once, without any controller: the limit of the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use http::{Method, Request, header};
use kube::Client;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::writes::{Resource, Write, Writes};

/// Concurrent requests.
const CONNECTIONS: usize = 64;
/// Annotation of which each write changes the value.
const ANNOTATION: &str = "bench.topolvm.io/write";

/// Returns the time that the writes take, which are made in a number of parts: that of the claims of the run. Objects
/// that the run has left show how large they are.
pub(super) async fn time_writes(client: &Client, writes: &Writes, parts: usize) -> Result<Duration> {
    let mut found = BTreeMap::new();
    for resource in writes.resources().collect::<BTreeSet<_>>() {
        found.insert(resource.clone(), Objects::list(client, resource).await?);
    }
    let found = Arc::new(found);
    let start = Instant::now();
    let mut connections = JoinSet::new();
    for connection in 0..CONNECTIONS.min(parts) {
        let (client, writes, found) = (client.clone(), writes.clone(), Arc::clone(&found));
        connections.spawn(async move {
            for number in (connection..parts).step_by(CONNECTIONS) {
                let mut part = Part { client: &client, found: &found, number, created: BTreeMap::new(), made: 0 };
                for write in writes.part(number, parts) {
                    part.make(write).await.with_context(|| format!("{write:?}"))?;
                }
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = connections.join_next().await {
        ended.context("a task panicked")??;
    }
    Ok(start.elapsed())
}

/// Objects of a resource that exist.
struct Objects {
    kind: String,
    api_version: String,
    items: Vec<Value>,
}

impl Objects {
    async fn list(client: &Client, resource: &Resource) -> Result<Self> {
        let list =
            send(client, Method::GET, &format!("{}/{}?limit=500", resource.root(), resource.name), "", None).await?;
        let text = |name: &str| list.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
        let items = list.get("items").and_then(Value::as_array).into_iter().flatten();
        let items: Vec<_> = items.filter(|item| resource.has_written(item)).cloned().collect();
        ensure!(!items.is_empty(), "there are no {}", resource.name);
        let kind = text("kind").trim_end_matches("List").to_owned();
        Ok(Self { kind, api_version: text("apiVersion"), items })
    }
}

impl Resource {
    /// Returns the path of its API group.
    fn root(&self) -> String {
        let Self { group, version, name: _ } = self;
        if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") }
    }

    /// Returns false for an Event that was written as the Event of another API group, which has other fields.
    fn has_written(&self, object: &Value) -> bool {
        let is_of_group = object.get("eventTime").is_some_and(|time| !time.is_null());
        self.name != "events" || is_of_group == (self.group == "events.k8s.io")
    }

    /// Returns the path of all objects beside this one.
    fn path_of_siblings(&self, object: &Value) -> String {
        match object.pointer("/metadata/namespace").and_then(Value::as_str) {
            Some(namespace) => format!("{}/namespaces/{namespace}/{}", self.root(), self.name),
            None => format!("{}/{}", self.root(), self.name),
        }
    }
}

/// The writes for one claim.
struct Part<'a> {
    client: &'a Client,
    found: &'a BTreeMap<Resource, Objects>,
    number: usize,
    /// The last object of each resource that was created here, as the API server has returned it.
    created: BTreeMap<&'a Resource, Value>,
    made: usize,
}

impl<'a> Part<'a> {
    async fn make(&mut self, write: &'a Write) -> Result<()> {
        self.made += 1;
        let resource = &write.resource;
        let objects = self.found.get(resource).context("the resource was not listed")?;
        let example = objects.items.get(self.number % objects.items.len()).context("no object")?;
        if write.is_create() {
            let (path, object) = (resource.path_of_siblings(example), self.copy(example));
            let created = send(self.client, Method::POST, &path, "application/json", Some(&object)).await?;
            self.created.insert(resource, created);
            return Ok(());
        }
        let own = self.created.get(resource);
        let object = own.unwrap_or(example);
        let name = object.pointer("/metadata/name").and_then(Value::as_str).context("no name")?;
        let path = format!("{}/{name}", resource.path_of_siblings(object));
        let path = if write.is_status { format!("{path}/status") } else { path };
        let change = self.change(write, example);
        let (method, path, content, body) = match write.verb.as_str() {
            // Others may change an object that was not created here
            "PUT" if own.is_some() => (Method::PUT, path, "application/json", merge(object.clone(), change)),
            "APPLY" => {
                let mut applied = change;
                let metadata = json!({"name": name, "namespace": object.pointer("/metadata/namespace")});
                let (kind, version) = (&objects.kind, &objects.api_version);
                applied = merge(applied, json!({"apiVersion": version, "kind": kind, "metadata": metadata}));
                (
                    Method::PATCH,
                    format!("{path}?fieldManager=bench&force=true"),
                    "application/apply-patch+yaml",
                    applied,
                )
            }
            _ => (Method::PATCH, path, "application/merge-patch+json", change),
        };
        let changed = send(self.client, method, &path, content, Some(&body)).await?;
        if own.is_some() {
            self.created.insert(resource, changed);
        }
        Ok(())
    }

    /// Returns a new object like one that exists.
    fn copy(&self, example: &Value) -> Value {
        let mut copy = example.clone();
        if let Some(metadata) = copy.pointer_mut("/metadata").and_then(Value::as_object_mut) {
            for field in
                ["uid", "resourceVersion", "creationTimestamp", "managedFields", "generation", "ownerReferences"]
            {
                metadata.remove(field);
            }
            metadata.insert("name".to_owned(), format!("limit-{}-{}", self.number, self.made).into());
        }
        copy
    }

    /// Returns what a write changes.
    fn change(&self, write: &Write, example: &Value) -> Value {
        let value = format!("{}-{}", self.number, self.made);
        if !write.is_status {
            return json!({"metadata": {"annotations": {ANNOTATION: value}}});
        }
        let size = format!("{}Gi", self.made);
        let changed = match write.resource.name.as_str() {
            "persistentvolumes" => json!({"message": value}),
            "persistentvolumeclaims" => json!({"capacity": {"storage": size}}),
            "logicalvolumes" => json!({"currentSize": size}),
            _ => return json!({"status": example.get("status")}),
        };
        json!({"status": merge(example.get("status").cloned().unwrap_or_default(), changed)})
    }
}

/// Merges JSON objects; other values are replaced.
fn merge(target: Value, change: Value) -> Value {
    match (target, change) {
        (Value::Object(mut target), Value::Object(change)) => {
            for (key, value) in change {
                let merged = merge(target.remove(&key).unwrap_or_default(), value);
                target.insert(key, merged);
            }
            Value::Object(target)
        }
        (_, change) => change,
    }
}

async fn send(client: &Client, method: Method, path: &str, content: &str, body: Option<&Value>) -> Result<Value> {
    let mut request = Request::builder().method(method).uri(path);
    if !content.is_empty() {
        request = request.header(header::CONTENT_TYPE, content);
    }
    let body = body.map(serde_json::to_vec).transpose()?.unwrap_or_default();
    Ok(client.request(request.body(body)?).await?)
}
