//! Lists all objects of a cluster, to find out which ones a command creates, deletes or changes.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::shared::TestCluster;

/// Resources whose objects the cluster itself creates and deletes at any time: an APIService follows the definitions of
/// its group some time later.
const NOT_LISTED: [&str; 5] = [
    "apiservices.apiregistration.k8s.io",
    "componentstatuses",
    "events",
    "events.events.k8s.io",
    "leases.coordination.k8s.io",
];
/// Fields of metadata that differ in an object without changes.
const NOT_COMPARED: [&str; 3] = ["generation", "managedFields", "resourceVersion"];

/// All objects of a cluster, without their status and without Events and Leases.
#[derive(Debug)]
pub struct Objects(BTreeMap<String, Value>);

impl Objects {
    /// Lists the objects of all resources of all API groups.
    pub fn list(cluster: &TestCluster) -> Result<Self> {
        let resources = cluster.kubectl(&["api-resources", "--verbs=list", "--no-headers", "-o", "name"])?;
        let resources: Vec<_> = resources.lines().filter(|resource| !NOT_LISTED.contains(resource)).collect();
        let text = cluster.kubectl(&["get", &resources.join(","), "--all-namespaces", "-o", "json"])?;
        let list: Value = serde_json::from_str(&text).context("kubectl prints no JSON")?;
        let items = list.get("items").and_then(Value::as_array).context("kubectl prints no list")?;
        Ok(Self(items.iter().map(|object| (name(object), without_changing_fields(object.clone()))).collect()))
    }

    /// Fails if objects were created, deleted or changed since `before`; the error names them.
    pub fn ensure_same(&self, before: &Self) -> Result<()> {
        let came = self.0.keys().filter(|name| !before.0.contains_key(*name)).map(|name| format!("came: {name}"));
        let went = before.0.keys().filter(|name| !self.0.contains_key(*name)).map(|name| format!("went: {name}"));
        let changed = self.0.iter().filter_map(|(name, object)| {
            let old = before.0.get(name).filter(|old| *old != object)?;
            Some(format!("changed: {name}: {old} became {object}"))
        });
        let all: Vec<_> = came.chain(went).chain(changed).collect();
        ensure!(all.is_empty(), "the cluster is not as it was:\n{}", all.join("\n"));
        Ok(())
    }
}

fn name(object: &Value) -> String {
    let text = |pointer| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let (version, kind) = (text("/apiVersion"), text("/kind"));
    format!("{version} {kind} {}/{}", text("/metadata/namespace"), text("/metadata/name"))
}

fn without_changing_fields(mut object: Value) -> Value {
    // The checks of the controller write their findings there, whenever they run
    let is_of_checks = object.pointer("/metadata/name").is_some_and(|name| name == "topolvm-doctor");
    if let Some(fields) = object.as_object_mut() {
        drop(fields.remove("status"));
        if is_of_checks {
            drop(fields.remove("data"));
        }
    }
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|key, _| !NOT_COMPARED.contains(&key.as_str()));
    }
    remove_empty(&mut object);
    object
}

/// Removes empty lists and maps: removing the last entry leaves an empty one or none.
fn remove_empty(value: &mut Value) {
    if let Some(fields) = value.as_object_mut() {
        fields.values_mut().for_each(remove_empty);
        fields.retain(|_, value| {
            let is_empty = value.is_null()
                || value.as_array().is_some_and(Vec::is_empty)
                || value.as_object().is_some_and(serde_json::Map::is_empty);
            !is_empty
        });
    }
    value.as_array_mut().into_iter().flatten().for_each(remove_empty);
}
