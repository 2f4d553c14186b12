//! Parses YAML into a tree with line numbers, as existing configuration files rely on: keys in any case, of equal keys
//! the last, whole numbers also as `10.0`, unknown keys give warnings, and all mistakes are reported instead of the
//! first one only.

use std::cell::RefCell;
use std::fmt::{self, Display};

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::{DuplicateKeyPolicy, Options, Spanned, from_str_with_options};

use super::keys::Key;

/// A value and its line.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) line: u64,
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
pub(super) struct Diagnostics {
    file: String,
    /// Mistakes that make the file unusable.
    errors: RefCell<Vec<String>>,
    /// Mistakes that change nothing.
    warnings: RefCell<Vec<String>>,
}

impl Diagnostics {
    pub(super) fn new(file: &str) -> Self {
        Self { file: file.to_owned(), errors: RefCell::default(), warnings: RefCell::default() }
    }

    pub(super) fn error(&self, line: u64, message: impl Display) {
        self.errors.borrow_mut().push(format!("{}:{line}: {message}", self.file));
    }

    /// Returns the number of errors so far.
    pub(super) fn error_count(&self) -> usize {
        self.errors.borrow().len()
    }

    /// Returns what was parsed with the warnings, or the errors if there are any.
    pub(super) fn finish<T>(self, parsed: Option<T>) -> Result<(T, Vec<String>), Vec<String>> {
        let errors = self.errors.into_inner();
        match parsed {
            Some(parsed) if errors.is_empty() => Ok((parsed, self.warnings.into_inner())),
            _ => Err(errors),
        }
    }
}

/// The keys of one mapping that were not taken yet; those that are left at the end are unknown.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    pub(super) line: u64,
    /// Begins errors and warnings about the whole mapping.
    pub(super) place: String,
    pub(super) diagnostics: &'a Diagnostics,
    entries: Vec<(String, Node)>,
}

impl Node {
    /// Parses a whole file. An empty file is an empty mapping.
    pub(super) fn parse(text: &str) -> Result<Self, serde_saphyr::Error> {
        // As sigs.k8s.io/yaml, which TopoLVM uses
        let mut options = Options::default();
        options.duplicate_keys = DuplicateKeyPolicy::LastWins;
        options.legacy_octal_numbers = true;
        let node = from_str_with_options::<Option<Self>>(text, options)?;
        Ok(node.unwrap_or(Self { line: 1, value: Value::Null }))
    }

    /// Returns what `read` makes of the value. Its error, what `name` must be, is added to the others.
    pub(super) fn read<T>(
        self,
        name: &str,
        diagnostics: &Diagnostics,
        read: impl FnOnce(Self) -> Result<T, String>,
    ) -> Option<T> {
        let line = self.line;
        read(self).map_err(|problem| diagnostics.error(line, format!("{name} must be {problem}"))).ok()
    }
}

/// Reads a string.
pub(super) fn read_string(node: Node) -> Result<String, String> {
    match node.value {
        Value::Text(text) => Ok(text),
        // Existing files contain `stripe-size: 4`.
        Value::Integer(number) => Ok(number.to_string()),
        Value::Null | Value::Bool(_) | Value::Float(_) => Err("a string; put it in quotes".to_owned()),
        Value::List(_) | Value::Map(_) => Err("a string".to_owned()),
    }
}

/// Reads true or false.
#[expect(clippy::needless_pass_by_value, reason = "as all that read a value")]
pub(super) fn read_flag(node: Node) -> Result<bool, String> {
    if let Value::Bool(flag) = node.value { Ok(flag) } else { Err("true or false".to_owned()) }
}

/// Reads a whole number from 0 to `max`.
pub(super) fn read_number_to<N: TryFrom<i128> + PartialOrd + Display>(max: N) -> impl Fn(Node) -> Result<N, String> {
    move |node| {
        let number = match node.value {
            Value::Integer(number) => Some(number),
            Value::Float(number) if number.fract() == 0.0 => format!("{number:.0}").parse().ok(),
            Value::Null | Value::Bool(_) | Value::Float(_) | Value::Text(_) | Value::List(_) | Value::Map(_) => None,
        };
        let number = number.and_then(|number: i128| N::try_from(number).ok());
        number.filter(|number| *number <= max).ok_or_else(|| format!("a whole number from 0 to {max}"))
    }
}

/// Reads a number with or without a fraction, as the shortest decimal text of it.
#[expect(clippy::needless_pass_by_value, reason = "as all that read a value")]
pub(super) fn read_decimal(node: Node) -> Result<String, String> {
    match node.value {
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        Value::Null | Value::Bool(_) | Value::Text(_) | Value::List(_) | Value::Map(_) => Err("a number".to_owned()),
    }
}

fn read_list(node: Node) -> Result<Vec<Node>, String> {
    if let Value::List(items) = node.value { Ok(items) } else { Err("a list".to_owned()) }
}

impl<'a> Fields<'a> {
    /// Reads a mapping; null is an empty one.
    pub(super) fn read(node: Node, diagnostics: &'a Diagnostics) -> Result<Self, String> {
        let entries = match node.value {
            Value::Map(entries) => entries,
            Value::Null => Vec::new(),
            Value::Bool(_) | Value::Integer(_) | Value::Float(_) | Value::Text(_) | Value::List(_) => {
                return Err("a mapping of keys to values".to_owned());
            }
        };
        Ok(Self { line: node.line, place: String::new(), diagnostics, entries })
    }

    /// Removes a key and returns its value as `read` converts it. A null value counts as absent. If a key is set more
    /// than once, in any case, the last value is used.
    pub(super) fn take<T>(&mut self, key: Key, read: impl FnOnce(Node) -> Result<T, String>) -> Option<T> {
        let of_key = |(name, _): &mut (String, Node)| name.eq_ignore_ascii_case(key.name);
        let mut given: Vec<_> = self.entries.extract_if(.., of_key).map(|(_, node)| node).collect();
        let node = given.pop()?;
        if let Some(first) = given.first() {
            let (name, last) = (key.name, node.line);
            self.add_warning(first.line, &format!("{name} is set more than once; the value in line {last} is used"));
        }
        if matches!(node.value, Value::Null) { None } else { node.read(key.name, self.diagnostics, read) }
    }

    /// Takes what `read` makes of each entry of a list.
    pub(super) fn take_list<T>(&mut self, key: Key, read: impl Fn(Node) -> Result<T, String>) -> Option<Vec<T>> {
        self.take_list_with_line(key, read).map(|(_, list)| list)
    }

    /// Takes the same, with the line on which the list begins.
    pub(super) fn take_list_with_line<T>(
        &mut self,
        key: Key,
        read: impl Fn(Node) -> Result<T, String>,
    ) -> Option<(u64, Vec<T>)> {
        let list = self.take(key, Ok)?;
        let line = list.line;
        let items = list.read(key.name, self.diagnostics, read_list)?;
        let name = format!("each entry of {}", key.name);
        Some((line, items.into_iter().filter_map(|item| item.read(&name, self.diagnostics, &read)).collect()))
    }

    /// Takes a list of mappings; none without the key.
    pub(super) fn take_mappings(&mut self, key: Key) -> Vec<Self> {
        let diagnostics = self.diagnostics;
        self.take_list(key, |node| Self::read(node, diagnostics)).unwrap_or_default()
    }

    /// Adds an error about the whole mapping.
    pub(super) fn error(&self, message: impl Display) {
        self.diagnostics.error(self.line, format!("{}{message}", self.place));
    }

    /// Returns a value, or adds the error.
    pub(super) fn check<T>(&self, checked: Result<T, impl Display>) -> Option<T> {
        checked.map_err(|message| self.error(message)).ok()
    }

    /// Adds a warning about the whole mapping.
    pub(super) fn warn(&self, message: impl Display) {
        self.add_warning(self.line, &format!("{}{message}", self.place));
    }

    /// Warns about every key that was not taken.
    pub(super) fn warn_of_unknown_keys(&self) {
        for (key, node) in &self.entries {
            self.add_warning(node.line, &format!("unknown key {key:?} is ignored"));
        }
    }

    fn add_warning(&self, line: u64, message: &str) {
        let Diagnostics { file, warnings, .. } = self.diagnostics;
        warnings.borrow_mut().push(format!("{file}:{line}: {message}"));
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
