//! Server-side apply: owners of fields, what a new configuration sets and removes, and conflicts.
//!
//! Follows the real server with these simplifications: lists are atomic except `metadata.finalizers` (a set) and
//! `conditions` (a map by `type`), and `metadata.managedFields` is not shown.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::json::as_map;

/// An element of a path: from a value to one inside it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Field(String),
    /// A member of a set of strings.
    Member(String),
    /// The entry of a list that has this `type`.
    OfType(String),
}

type Path = Vec<Step>;

/// A field manager, once for what it applies and once for its other writes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Manager {
    pub(super) name: String,
    pub(super) applies: bool,
    pub(super) subresource: bool,
}

/// The field managers of one object and the fields that they own.
#[derive(Clone, Debug, Default)]
pub(super) struct Ownership(BTreeMap<Manager, BTreeSet<Path>>);

impl Ownership {
    /// Records a write that is no apply: the fields that it changed are owned by its manager alone.
    pub(super) fn update(&mut self, manager: &Manager, before: &Value, after: &Value) {
        let (old, new) = (leaves(before), leaves(after));
        let changed: BTreeSet<Path> = old
            .iter()
            .filter(|(path, value)| new.get(*path) != Some(value))
            .chain(new.iter().filter(|(path, value)| old.get(*path) != Some(value)))
            .map(|(path, _)| path.clone())
            .collect();
        for owned in self.0.values_mut() {
            owned.retain(|path| !changed.contains(path));
        }
        let now = changed.into_iter().filter(|path| new.contains_key(path));
        self.0.entry(manager.clone()).or_default().extend(now);
    }

    /// Applies a configuration to an object: sets its fields, and removes fields that the same manager applied before
    /// and no other manager owns. The error lists the fields that others own.
    pub(super) fn apply(
        &mut self,
        manager: &Manager,
        object: &mut Value,
        configuration: &Value,
        force: bool,
    ) -> Result<(), Vec<String>> {
        let (current, wanted) = (leaves(object), leaves(configuration));
        let mut conflicts = Vec::new();
        for (other, owned) in &mut self.0 {
            if other == manager {
                continue;
            }
            for (path, value) in &wanted {
                if owned.contains(path) && current.get(path).is_some_and(|current| current != value) {
                    if force {
                        owned.remove(path);
                    } else {
                        conflicts.push(format!("conflict with \"{}\": {}", other.name, display(path)));
                    }
                }
            }
        }
        if !conflicts.is_empty() {
            return Err(conflicts);
        }
        let owned: BTreeSet<Path> = wanted.keys().cloned().collect();
        let before = self.0.insert(manager.clone(), owned).unwrap_or_default();
        for path in before {
            if !self.0.values().any(|owned| owned.contains(&path)) {
                remove(object, &path);
            }
        }
        for (path, value) in wanted {
            set(object, &path, value);
        }
        Ok(())
    }
}

/// Returns the values that can be owned, by path.
fn leaves(object: &Value) -> BTreeMap<Path, Value> {
    /// Metadata without an owner: the identity of the object, and fields that only the server sets.
    const SERVERS: &[&str] = &[
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "generateName",
        "generation",
        "managedFields",
        "name",
        "namespace",
        "resourceVersion",
        "uid",
    ];
    let mut found = BTreeMap::new();
    for (name, value) in object.as_object().into_iter().flatten() {
        match (name.as_str(), value) {
            ("apiVersion" | "kind", _) => {}
            ("metadata", Value::Object(metadata)) => {
                for (key, value) in metadata.iter().filter(|(key, _)| !SERVERS.contains(&key.as_str())) {
                    collect(value, vec![field(name), field(key)], &mut found);
                }
            }
            _ => collect(value, vec![field(name)], &mut found),
        }
    }
    found
}

fn field(name: &str) -> Step {
    Step::Field(name.to_owned())
}

fn collect(value: &Value, path: Path, found: &mut BTreeMap<Path, Value>) {
    let within = |step: Step| {
        let mut path = path.clone();
        path.push(step);
        path
    };
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (name, value) in map {
                collect(value, within(field(name)), found);
            }
        }
        Value::Array(items) if path.last() == Some(&field("finalizers")) => {
            for item in items.iter().filter_map(Value::as_str) {
                found.insert(within(Step::Member(item.to_owned())), item.into());
            }
        }
        Value::Array(items) if path.last() == Some(&field("conditions")) => {
            for item in items {
                let of_type = item["type"].as_str().unwrap_or_default().to_owned();
                collect(item, within(Step::OfType(of_type)), found);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) | Value::Object(_) => {
            found.insert(path, value.clone());
        }
    }
}

fn set(target: &mut Value, path: &[Step], value: Value) {
    match path {
        [] => *target = value,
        [Step::Field(name), rest @ ..] => set(as_map(target).entry(name.as_str()).or_insert(Value::Null), rest, value),
        [Step::Member(_), ..] => {
            let items = as_list(target);
            if !items.contains(&value) {
                items.push(value);
            }
        }
        [Step::OfType(of_type), rest @ ..] => {
            let items = as_list(target);
            let known = items.iter().position(|item| item["type"] == of_type.as_str());
            let place = known.unwrap_or(items.len());
            if known.is_none() {
                items.push(Value::Object(Map::new()));
            }
            if let Some(item) = items.get_mut(place) {
                set(item, rest, value);
            }
        }
    }
}

/// Removes a value, and the maps and lists around it that become empty.
fn remove(target: &mut Value, path: &[Step]) {
    match (path, target) {
        ([Step::Field(name)], Value::Object(map)) => {
            map.remove(name);
        }
        ([Step::Field(name), rest @ ..], Value::Object(map)) => {
            if let Some(inner) = map.get_mut(name) {
                remove(inner, rest);
                if is_empty(inner) {
                    map.remove(name);
                }
            }
        }
        ([Step::Member(member), ..], Value::Array(items)) => items.retain(|item| item != member.as_str()),
        ([Step::OfType(of_type), rest @ ..], Value::Array(items)) => {
            for item in items.iter_mut().filter(|item| item["type"] == of_type.as_str()) {
                remove(item, rest);
            }
            items.retain(|item| !is_empty(item));
        }
        _ => {}
    }
}

fn as_list(value: &mut Value) -> &mut Vec<Value> {
    if !value.is_array() {
        *value = Value::Array(Vec::new());
    }
    #[expect(clippy::unreachable, reason = "made a list above")]
    let Value::Array(items) = value else { unreachable!() };
    items
}

fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty)
}

fn display(path: &[Step]) -> String {
    let step = |step: &Step| match step {
        Step::Field(name) => format!(".{name}"),
        Step::Member(name) => format!("[=\"{name}\"]"),
        Step::OfType(name) => format!("[type=\"{name}\"]"),
    };
    path.iter().map(step).collect()
}
