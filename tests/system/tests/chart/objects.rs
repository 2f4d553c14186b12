//! Objects of helm and kustomize, and their differences.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Map, Value};

/// Labels that only the chart adds, because helm's users expect them, also in selectors.
const LABELS_OF_HELM: [&str; 3] = ["app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "helm.sh/chart"];
/// Annotations that only the chart adds: the definition is kept at an uninstall, and pods change with a checksum where
/// kustomize gives a ConfigMap another name.
const ANNOTATIONS_OF_HELM: [&str; 2] = ["helm.sh/resource-policy", "checksum/config"];
/// The name of a ConfigMap that kustomize generates, before its hash.
const GENERATED: &str = "topolvm-scheduler-options";

/// Keys of ConfigMaps whose values are YAML files.
const FILES: [&str; 2] = ["lvmd.yaml", "scheduler-options.yaml"];

/// Kind, namespace and name of an object.
pub(crate) type Key = (String, String, String);

/// Objects by their names.
#[derive(Debug)]
pub(crate) struct Objects(BTreeMap<Key, Value>);

impl Objects {
    /// Parses the objects in a YAML stream.
    pub(crate) fn parse(yaml: &str) -> Result<Self> {
        let mut objects = BTreeMap::new();
        for object in serde_saphyr::from_multiple::<Option<Value>>(yaml).context("no YAML")?.into_iter().flatten() {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let metadata = &object["metadata"];
            let key = (text(&object["kind"]), text(&metadata["namespace"]), text(&metadata["name"]));
            let twice = objects.insert(key, object);
            ensure!(twice.is_none(), "an object is there twice: {twice:?}");
        }
        Ok(Self(objects))
    }

    /// Returns the objects of a kind.
    pub(crate) fn of_kind(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.0.iter().filter(move |((of, ..), _)| of == kind).map(|(_, object)| object)
    }

    /// Returns all objects.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Value> {
        self.0.values()
    }

    /// Finds an object by kind and name.
    pub(crate) fn find(&self, kind: &str, name: &str) -> Result<&Value> {
        let mut named = self.of_kind(kind).filter(|object| object["metadata"]["name"] == name);
        named.next().with_context(|| format!("there is no {kind} {name}"))
    }

    /// Removes kinds of objects, and fields that only helm or only kustomize adds.
    pub(crate) fn comparable(self, without: &[&str]) -> Result<Self> {
        let wanted = self.0.into_iter().filter(|((kind, ..), _)| !without.contains(&kind.as_str()));
        let comparable = wanted.map(|((kind, namespace, name), object)| {
            Ok(((kind, namespace, without_hash(&name).to_owned()), plain(object, "")?))
        });
        comparable.collect::<Result<_>>().map(Self)
    }

    /// Returns the differences between two sets of objects, a line each.
    pub(crate) fn differences(&self, other: &Self) -> Vec<String> {
        let keys: BTreeSet<&Key> = self.0.keys().chain(other.0.keys()).collect();
        let mut differences = Vec::new();
        for key in keys {
            let (kind, _, name) = key;
            compare(&format!("{kind} {name}"), self.0.get(key), other.0.get(key), &mut differences);
        }
        differences
    }
}

fn compare(path: &str, one: Option<&Value>, other: Option<&Value>, differences: &mut Vec<String>) {
    match (one, other) {
        (Some(Value::Object(one)), Some(Value::Object(other))) => {
            for name in one.keys().chain(other.keys().filter(|name| !one.contains_key(*name))) {
                compare(&format!("{path}/{name}"), one.get(name), other.get(name), differences);
            }
        }
        (Some(Value::Array(one)), Some(Value::Array(other))) => {
            for index in 0..one.len().max(other.len()) {
                compare(&format!("{path}/{index}"), one.get(index), other.get(index), differences);
            }
        }
        (one, other) if one == other => {}
        (one, other) => {
            let show = |value: Option<&Value>| value.map_or_else(|| "nothing".to_owned(), Value::to_string);
            differences.push(format!("{path}: kustomize has {}, the chart {}", show(one), show(other)));
        }
    }
}

/// Removes labels and annotations of helm and hashes of kustomize from a value, and parses text that is a file.
fn plain(value: Value, name: &str) -> Result<Value> {
    Ok(match value {
        Value::Object(members) => Value::Object(plain_members(members, name)?),
        Value::Array(items) => {
            let mut items = items.into_iter().map(|item| plain(item, name)).collect::<Result<Vec<_>>>()?;
            // A patch of kustomize changes the order. The first container is that of `kubectl logs`
            if let ("containers", [_, others @ ..]) = (name, items.as_mut_slice()) {
                others.sort_by_key(|container| container["name"].to_string());
            }
            if name == "env" {
                items.sort_by_key(|variable| variable["name"].to_string());
            }
            Value::Array(items)
        }
        Value::String(text) if FILES.contains(&name) => {
            serde_saphyr::from_str(&text).with_context(|| format!("{name} is no YAML"))?
        }
        Value::String(text) => Value::String(without_hash(&text).to_owned()),
        Value::Null | Value::Bool(_) | Value::Number(_) => value,
    })
}

fn plain_members(members: Map<String, Value>, of: &str) -> Result<Map<String, Value>> {
    let dropped: &[&str] = match of {
        "labels" | "matchLabels" | "selector" => &LABELS_OF_HELM,
        "annotations" => &ANNOTATIONS_OF_HELM,
        _ => &[],
    };
    let mut plain_ones = Map::new();
    for (name, member) in members {
        if dropped.contains(&name.as_str()) {
            continue;
        }
        let member = plain(member, &name)?;
        let is_empty = member.as_object().is_some_and(Map::is_empty);
        if !(is_empty && ["labels", "annotations"].contains(&name.as_str())) {
            plain_ones.insert(name, member);
        }
    }
    Ok(plain_ones)
}

fn without_hash(name: &str) -> &str {
    let hash = name.strip_prefix(GENERATED).and_then(|rest| rest.strip_prefix('-'));
    if hash.is_some_and(|hash| hash.len() == 10) { GENERATED } else { name }
}
