//! Differences between two versions of an object, value by value.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;
use serde_json::Value;

/// JSON pointers of fields that the API server or controllers write.
const NOT_COMPARED: [&str; 6] = [
    "/metadata/managedFields",
    "/metadata/resourceVersion",
    "/metadata/generation",
    "/metadata/uid",
    "/metadata/creationTimestamp",
    "/status",
];

/// A value that is added, removed or changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Difference {
    /// `spec.replicas`, `metadata.labels["app.kubernetes.io/name"]`, `spec.containers[0].image`.
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    before: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<Value>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.before, &self.after) {
            (Some(before), Some(after)) => write!(f, "{}: {before} -> {after}", self.path),
            (Some(before), None) => write!(f, "- {}: {before}", self.path),
            (None, Some(after)) => write!(f, "+ {}: {after}", self.path),
            (None, None) => f.write_str(&self.path),
        }
    }
}

/// Returns the differences between two versions of an object.
pub(crate) fn differences(before: &Value, after: &Value) -> Vec<Difference> {
    let mut found = Vec::new();
    compare("", "", Some(before), Some(after), &mut found);
    found
}

fn compare(pointer: &str, path: &str, before: Option<&Value>, after: Option<&Value>, found: &mut Vec<Difference>) {
    if before == after || NOT_COMPARED.contains(&pointer) {
        return;
    }
    match (before, after) {
        (Some(Value::Object(old)), Some(Value::Object(new))) => {
            for key in old.keys().chain(new.keys()).collect::<BTreeSet<_>>() {
                let inside = inside(path, key);
                compare(&format!("{pointer}/{key}"), &inside, old.get(key), new.get(key), found);
            }
        }
        (Some(Value::Array(old)), Some(Value::Array(new))) => {
            for index in 0..old.len().max(new.len()) {
                let (pointer, path) = (format!("{pointer}/{index}"), format!("{path}[{index}]"));
                compare(&pointer, &path, old.get(index), new.get(index), found);
            }
        }
        (before, after) => {
            found.push(Difference { path: path.to_owned(), before: before.cloned(), after: after.cloned() });
        }
    }
}

/// Returns the path of a key inside of a path.
fn inside(path: &str, key: &str) -> String {
    if !key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-') {
        return format!("{path}[{key:?}]");
    }
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_value_that_differs_is_named_with_its_path() {
        let before = json!({"spec": {"replicas": 2, "args": ["a", "b"]}, "metadata": {"labels": {"a.b/c": "x"}}});
        let after =
            json!({"spec": {"replicas": 3, "args": ["a"], "new": true}, "metadata": {"labels": {"a.b/c": "y"}}});
        let lines: Vec<_> = differences(&before, &after).iter().map(ToString::to_string).collect();
        let expected = [
            r#"metadata.labels["a.b/c"]: "x" -> "y""#,
            r#"- spec.args[1]: "b""#,
            "+ spec.new: true",
            "spec.replicas: 2 -> 3",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn what_the_api_server_counts_is_no_difference() {
        let before = json!({"metadata": {"resourceVersion": "1", "generation": 1}, "status": {"ready": 1}});
        let after = json!({"metadata": {"resourceVersion": "2", "generation": 2, "managedFields": []}});
        assert_eq!(differences(&before, &after), []);
    }
}
