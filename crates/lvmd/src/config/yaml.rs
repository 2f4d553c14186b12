//! Parses YAML into a tree with line numbers, as existing configuration files rely on: keys in any case, unknown keys
//! give warnings, and all mistakes are reported instead of the first one only.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

/// A value and the line that it stands on.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) line: u64,
    value: Value,
}

#[derive(Clone, Debug)]
enum Value {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

/// The errors and warnings about a file, with its lines.
#[derive(Debug)]
pub(crate) struct Diagnostics {
    file: String,
    /// Mistakes that make the file unusable.
    pub(crate) errors: Vec<String>,
    /// Mistakes that change nothing.
    pub(crate) warnings: Vec<String>,
}

impl Diagnostics {
    pub(crate) fn new(file: &str) -> Self {
        Self { file: file.to_owned(), errors: Vec::new(), warnings: Vec::new() }
    }

    pub(crate) fn error(&mut self, line: u64, message: impl fmt::Display) {
        self.errors.push(format!("{}:{line}: {message}", self.file));
    }

    pub(crate) fn warning(&mut self, line: u64, message: impl fmt::Display) {
        self.warnings.push(format!("{}:{line}: {message}", self.file));
    }
}

/// The keys of one mapping that were not taken yet; those that are left at the end are unknown.
#[derive(Debug)]
pub(crate) struct Fields {
    pub(crate) line: u64,
    entries: Vec<(String, Node)>,
}

impl Node {
    /// Parses a whole file. An empty file is an empty mapping.
    pub(crate) fn parse(text: &str) -> Result<Self, serde_saphyr::Error> {
        serde_saphyr::from_str::<Option<Self>>(text)
            .map(|node| node.unwrap_or(Self { line: 1, value: Value::Map(Vec::new()) }))
    }

    /// Returns this value as a mapping; anything else is an error.
    pub(crate) fn fields(self, what: &str, diagnostics: &mut Diagnostics) -> Option<Fields> {
        match self.value {
            Value::Map(entries) => Some(Fields { line: self.line, entries }),
            Value::Null => Some(Fields { line: self.line, entries: Vec::new() }),
            Value::Bool(_) | Value::Integer(_) | Value::Float(_) | Value::Text(_) | Value::List(_) => {
                diagnostics.error(self.line, format!("{what} must be a mapping of keys to values"));
                None
            }
        }
    }

    fn number(self, what: &str, max: u64, diagnostics: &mut Diagnostics) -> Option<u64> {
        if let Value::Integer(number) = self.value
            && let Ok(number) = u64::try_from(number)
            && number <= max
        {
            return Some(number);
        }
        diagnostics.error(self.line, format!("{what} must be a whole number from 0 to {max}"));
        None
    }

    /// Returns this value as a string.
    pub(crate) fn text(self, what: &str, diagnostics: &mut Diagnostics) -> Option<String> {
        match self.value {
            Value::Text(text) => Some(text),
            // Existing files say `stripe-size: 4`.
            Value::Integer(number) => Some(number.to_string()),
            Value::Null | Value::Bool(_) | Value::Float(_) => {
                diagnostics.error(self.line, format!("{what} must be a string; put it in quotes"));
                None
            }
            Value::List(_) | Value::Map(_) => {
                diagnostics.error(self.line, format!("{what} must be a string"));
                None
            }
        }
    }
}

impl Fields {
    /// Takes the value of a key; absent and null are the same. Of a key that is given twice in different case, the last
    /// counts.
    pub(crate) fn take(&mut self, key: &str) -> Option<Node> {
        let mut found = None;
        self.entries.retain(|(name, node)| {
            let hit = name.eq_ignore_ascii_case(key);
            if hit {
                found = Some(node.clone());
            }
            !hit
        });
        found.filter(|node| !matches!(node.value, Value::Null))
    }

    /// Takes a string.
    pub(crate) fn text(&mut self, key: &str, diagnostics: &mut Diagnostics) -> Option<String> {
        self.take(key)?.text(key, diagnostics)
    }

    /// Takes a list of whole numbers from 0 to `max`.
    pub(crate) fn numbers(&mut self, key: &str, max: u32, diagnostics: &mut Diagnostics) -> Vec<u32> {
        let items = self.list(key, diagnostics).unwrap_or_default();
        let what = format!("each entry of {key}");
        let number = |item: Node| item.number(&what, max.into(), diagnostics).and_then(|number| number.try_into().ok());
        items.into_iter().filter_map(number).collect()
    }

    /// Takes true or false.
    pub(crate) fn flag(&mut self, key: &str, diagnostics: &mut Diagnostics) -> Option<bool> {
        let node = self.take(key)?;
        if let Value::Bool(flag) = node.value {
            return Some(flag);
        }
        diagnostics.error(node.line, format!("{key} must be true or false"));
        None
    }

    /// Takes a whole number from 0 to `max`.
    pub(crate) fn number(&mut self, key: &str, max: u64, diagnostics: &mut Diagnostics) -> Option<u64> {
        self.take(key)?.number(key, max, diagnostics)
    }

    /// Takes a number with or without a fraction, as the shortest decimal text of it.
    pub(crate) fn decimal(&mut self, key: &str, diagnostics: &mut Diagnostics) -> Option<String> {
        let node = self.take(key)?;
        match node.value {
            Value::Integer(number) => Some(number.to_string()),
            Value::Float(number) => Some(number.to_string()),
            Value::Null | Value::Bool(_) | Value::Text(_) | Value::List(_) | Value::Map(_) => {
                diagnostics.error(node.line, format!("{key} must be a number"));
                None
            }
        }
    }

    /// Takes a list of strings.
    pub(crate) fn texts(&mut self, key: &str, diagnostics: &mut Diagnostics) -> Option<Vec<String>> {
        let items = self.list(key, diagnostics)?;
        Some(items.into_iter().filter_map(|item| item.text(&format!("each entry of {key}"), diagnostics)).collect())
    }

    /// Takes a list.
    pub(crate) fn list(&mut self, key: &str, diagnostics: &mut Diagnostics) -> Option<Vec<Node>> {
        let node = self.take(key)?;
        if let Value::List(items) = node.value {
            return Some(items);
        }
        diagnostics.error(node.line, format!("{key} must be a list"));
        None
    }

    /// Warns about every key that was not taken.
    pub(crate) fn finish(self, diagnostics: &mut Diagnostics) {
        for (key, node) in self.entries {
            diagnostics.warning(node.line, format!("unknown key {key:?} is ignored"));
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        Ok(Self { line: spanned.referenced.line(), value: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyValue)
    }
}

struct AnyValue;

impl<'de> Visitor<'de> for AnyValue {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any YAML value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Integer(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Integer(value.into()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Value, E> {
        Ok(Value::Integer(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Value::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut map = Vec::new();
        while let Some(entry) = entries.next_entry()? {
            map.push(entry);
        }
        Ok(Value::Map(map))
    }
}
