//! Differences between two outcomes of the scenarios, and those that are deliberate.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::{Map, Value};

/// A value that differs between the stock program and its replacement.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Difference {
    pub(super) scenario: String,
    /// JSON pointer into the outcome.
    pub(super) field: String,
    /// Value with the stock program.
    pub(super) stock: Value,
    /// Value with its replacement.
    pub(super) embedded: Value,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scenario, field, stock, embedded } = self;
        write!(f, "{scenario} {field}: stock {stock}, embedded {embedded}")
    }
}

/// A difference that is deliberate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deliberate {
    /// Name of the scenario.
    pub(super) scenario: &'static str,
    /// JSON pointer into the outcome, to the value or to one that contains it. A part may be `*`.
    pub(super) field: &'static str,
    /// Reason for the difference.
    pub(super) reason: &'static str,
}

impl Deliberate {
    fn covers(&self, difference: &Difference) -> bool {
        let matches = |(pattern, part): (&str, &str)| pattern == "*" || pattern == part;
        let parts = self.field.split('/').count();
        self.scenario == difference.scenario
            && parts <= difference.field.split('/').count()
            && self.field.split('/').zip(difference.field.split('/')).all(matches)
    }
}

/// Returns all differences of the outcomes of some scenarios.
pub(super) fn differences(
    scenarios: &[String],
    stock: &BTreeMap<String, Value>,
    embedded: &BTreeMap<String, Value>,
) -> Vec<Difference> {
    let mut found = Vec::new();
    for scenario in scenarios {
        let value = |outcomes: &BTreeMap<String, Value>| outcomes.get(scenario).cloned().unwrap_or_default();
        compare(scenario, String::new(), &value(stock), &value(embedded), &mut found);
    }
    found
}

/// Returns the problems: differences that are not deliberate, and deliberate ones that do not exist.
pub(super) fn problems(differences: &[Difference], deliberate: &[Deliberate]) -> Vec<String> {
    let unknown = differences.iter().filter(|difference| !deliberate.iter().any(|known| known.covers(difference)));
    let absent = deliberate.iter().filter(|known| !differences.iter().any(|difference| known.covers(difference)));
    unknown
        .map(ToString::to_string)
        .chain(absent.map(|known| {
            format!("listed as deliberate ({}), and equal: {} {}", known.reason, known.scenario, known.field)
        }))
        .collect()
}

fn compare(scenario: &str, field: String, stock: &Value, embedded: &Value, found: &mut Vec<Difference>) {
    if let (Value::Object(left), Value::Object(right)) = (stock, embedded) {
        let keys: BTreeSet<_> = left.keys().chain(right.keys()).collect();
        for key in keys {
            let value = |members: &Map<String, Value>| members.get(key).cloned().unwrap_or_default();
            let field = format!("{field}/{}", key.replace('~', "~0").replace('/', "~1"));
            compare(scenario, field, &value(left), &value(right), found);
        }
    } else if stock != embedded {
        let (stock, embedded) = (stock.clone(), embedded.clone());
        found.push(Difference { scenario: scenario.to_owned(), field, stock, embedded });
    }
}
