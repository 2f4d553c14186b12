//! Label and field selectors.

use serde_json::Value;

use super::kind::Kind;
use super::status_error::StatusError;

/// The namespace, field selector and label selector of a list or watch.
#[derive(Clone, Debug, Default)]
pub(super) struct Selector {
    namespace: Option<String>,
    fields: Vec<Requirement>,
    labels: Vec<Requirement>,
}

#[derive(Clone, Debug)]
struct Requirement {
    key: String,
    test: Test,
}

#[derive(Clone, Debug)]
enum Test {
    In(Vec<String>),
    /// Matches also where the key is missing, as for labels on the real server.
    NotIn(Vec<String>),
    Exists,
    Missing,
}

impl Selector {
    pub(super) fn parse(kind: &Kind, namespace: Option<&str>, fields: &str, labels: &str) -> Result<Self, StatusError> {
        let fields = parse_all(fields)?;
        for field in &fields {
            let known = field.key == "metadata.name"
                || (field.key == "metadata.namespace" && kind.namespaced)
                || kind.selectable.contains(&field.key);
            if !known {
                return Err(StatusError::bad_request(format!("field label not supported: {}", field.key)));
            }
        }
        Ok(Self { namespace: namespace.map(str::to_owned), fields, labels: parse_all(labels)? })
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        let in_namespace = self
            .namespace
            .as_deref()
            .is_none_or(|namespace| object["metadata"]["namespace"].as_str() == Some(namespace));
        in_namespace
            && self.fields.iter().all(|field| {
                let value = field.key.split('.').fold(object, |value, name| &value[name]);
                // A missing field is an empty string to field selectors
                field.test.holds(Some(&text(value)))
            })
            && self.labels.iter().all(|label| {
                let value = &object["metadata"]["labels"][&label.key];
                label.test.holds(value.as_str())
            })
    }
}

impl Test {
    fn holds(&self, value: Option<&str>) -> bool {
        let is_one_of = |values: &[String]| value.is_some_and(|value| values.iter().any(|wanted| wanted == value));
        match self {
            Self::In(values) => is_one_of(values),
            Self::NotIn(values) => !is_one_of(values),
            Self::Exists => value.is_some(),
            Self::Missing => value.is_none(),
        }
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => other.to_string(),
    }
}

fn parse_all(selector: &str) -> Result<Vec<Requirement>, StatusError> {
    split_outside_parentheses(selector).into_iter().map(parse_one).collect()
}

fn split_outside_parentheses(selector: &str) -> Vec<&str> {
    let mut depth = 0_i32;
    selector
        .split(|c| {
            depth += match c {
                '(' => 1,
                ')' => -1,
                _ => 0,
            };
            c == ',' && depth == 0
        })
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .collect()
}

fn parse_one(part: &str) -> Result<Requirement, StatusError> {
    let (key, test) = if let Some((key, values)) = part.split_once(" notin ") {
        (key, Test::NotIn(set(values)))
    } else if let Some((key, values)) = part.split_once(" in ") {
        (key, Test::In(set(values)))
    } else if let Some((key, value)) = part.split_once("!=") {
        (key, Test::NotIn(vec![value.trim().to_owned()]))
    } else if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        (key, Test::In(vec![value.trim().to_owned()]))
    } else if let Some(key) = part.strip_prefix('!') {
        (key, Test::Missing)
    } else {
        (part, Test::Exists)
    };
    let key = key.trim();
    if key.is_empty() || key.contains(char::is_whitespace) {
        return Err(StatusError::bad_request(format!("unable to parse requirement: {part}")));
    }
    Ok(Requirement { key: key.to_owned(), test })
}

fn set(values: &str) -> Vec<String> {
    values
        .trim()
        .trim_start_matches('(')
        .trim_end_matches(')')
        .split(',')
        .map(|value| value.trim().to_owned())
        .collect()
}
