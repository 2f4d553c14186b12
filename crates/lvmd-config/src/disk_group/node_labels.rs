//! The labels that a disk group asks of a node, and those that the node has. Of Kubernetes no more is known than the
//! syntax of a label.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

/// Most characters of the name in a key, and of a value.
const MAX_NAME: usize = 63;
/// Most characters of the prefix of a key.
const MAX_PREFIX: usize = 253;

/// The labels of a node.
pub type NodeLabels = BTreeMap<String, String>;

/// A label that a node is to have: of this value, or of any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedLabel {
    key: String,
    value: Option<String>,
}

/// A text that is no label.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a label, KEY=VALUE or KEY for any value; {text:?} is invalid: {problem}")]
pub struct InvalidLabel {
    text: String,
    problem: &'static str,
}

/// The nodes that a disk group is for. A node must have a label of each key; of several values for one key, one is
/// enough. Without keys it is for all nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSelector {
    /// The values that do for a key; `None` if any does.
    keys: BTreeMap<String, Option<BTreeSet<String>>>,
}

impl NodeSelector {
    /// Returns whether it is for all nodes, whatever their labels.
    pub fn is_everything(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns whether a node with these labels is selected; `None` if that depends on labels that are not known yet.
    pub fn selects(&self, labels: Option<&NodeLabels>) -> Option<bool> {
        if self.is_everything() {
            return Some(true);
        }
        let labels = labels?;
        let has = |(key, values): (&String, &Option<BTreeSet<String>>)| {
            let value = labels.get(key);
            value.is_some_and(|value| values.as_ref().is_none_or(|values| values.contains(value)))
        };
        Some(self.keys.iter().all(has))
    }

    /// Returns whether no node can be selected by both: for some key they have no value in common, and a node has one
    /// value of a key.
    pub(super) fn excludes(&self, other: &Self) -> bool {
        let differ = |(key, values): (&String, &Option<BTreeSet<String>>)| {
            let others = other.keys.get(key).and_then(Option::as_ref);
            values.as_ref().zip(others).is_some_and(|(values, others)| values.is_disjoint(others))
        };
        self.keys.iter().any(differ)
    }
}

impl FromIterator<WantedLabel> for NodeSelector {
    fn from_iter<I: IntoIterator<Item = WantedLabel>>(labels: I) -> Self {
        let mut keys: BTreeMap<String, Option<BTreeSet<String>>> = BTreeMap::new();
        for WantedLabel { key, value } in labels {
            let values = keys.entry(key).or_insert_with(|| Some(BTreeSet::new()));
            match (value, values.as_mut()) {
                (Some(value), Some(values)) => drop(values.insert(value)),
                (_, _) => *values = None,
            }
        }
        Self { keys }
    }
}

/// As `kubectl get nodes --selector` takes it.
impl fmt::Display for NodeSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (key, values)) in self.keys.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let values: Vec<_> = values.iter().flatten().map(String::as_str).collect();
            match values.as_slice() {
                [] => write!(f, "{comma}{key}")?,
                [value] => write!(f, "{comma}{key}={value}")?,
                several => write!(f, "{comma}{key} in ({})", several.join(","))?,
            }
        }
        Ok(())
    }
}

impl FromStr for WantedLabel {
    type Err = InvalidLabel;

    fn from_str(text: &str) -> Result<Self, InvalidLabel> {
        let (key, value) = match text.split_once('=') {
            Some((key, value)) => (key, Some(value)),
            None => (text, None),
        };
        let checked = check_key(key).and_then(|()| value.map_or(Ok(()), check_value));
        checked.map_err(|problem| InvalidLabel { text: text.to_owned(), problem })?;
        Ok(Self { key: key.to_owned(), value: value.map(str::to_owned) })
    }
}

/// Parses the labels of a node as `KEY=VALUE,KEY=VALUE`.
pub fn parse_node_labels(text: &str) -> Result<NodeLabels, String> {
    let label = |word: &str| match word.trim().parse() {
        Ok(WantedLabel { key, value: Some(value) }) => Ok((key, value)),
        Ok(WantedLabel { key, value: None }) => Err(format!("{key:?} has no value; write KEY=VALUE")),
        Err(error) => Err(format!("each must be {error}")),
    };
    text.split(',').filter(|word| !word.trim().is_empty()).map(label).collect()
}

fn check_key(key: &str) -> Result<(), &'static str> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    if prefix.is_some_and(|prefix| !is_domain(prefix)) {
        return Err("the prefix before the slash must be a lower-case DNS domain such as example.com");
    }
    if is_name(name) {
        return Ok(());
    }
    Err("the name in its key must have 1 to 63 letters, digits, - _ or ., and begin and end with a letter or digit")
}

fn check_value(value: &str) -> Result<(), &'static str> {
    if value.is_empty() || is_name(value) {
        return Ok(());
    }
    Err("its value must have at most 63 letters, digits, - _ or ., and begin and end with a letter or digit")
}

fn is_name(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let ends_well = |end: Option<char>| end.is_some_and(|end| end.is_ascii_alphanumeric());
    text.len() <= MAX_NAME
        && text.bytes().all(inner)
        && ends_well(text.chars().next())
        && ends_well(text.chars().next_back())
}

fn is_domain(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_part =
        |part: &str| !part.is_empty() && part.bytes().all(inner) && !part.starts_with('-') && !part.ends_with('-');
    text.len() <= MAX_PREFIX && text.split('.').all(is_part)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn selector(labels: &[&str]) -> NodeSelector {
        labels.iter().map(|label| label.parse::<WantedLabel>().unwrap()).collect()
    }

    #[rstest]
    #[case(&[], "", Some(true))]
    #[case(&["a=1"], "a=1", Some(true))]
    #[case(&["a=1"], "a=2", Some(false))]
    #[case(&["a=1"], "", Some(false))]
    #[case(&["a"], "a=2", Some(true))]
    #[case(&["a="], "a=2", Some(false))]
    #[case(&["a="], "a=", Some(true))]
    #[case(&["a=1", "a=2"], "a=2", Some(true))]
    #[case(&["a=1", "a=2"], "a=3", Some(false))]
    #[case(&["a=1", "a"], "a=3", Some(true))]
    #[case(&["a=1", "b"], "a=1", Some(false))]
    #[case(&["a=1", "a=2", "b"], "a=2,b=x,c=y", Some(true))]
    fn a_node_needs_a_label_of_each_key_and_one_of_its_values(
        #[case] wanted: &[&str],
        #[case] labels: &str,
        #[case] expected: Option<bool>,
    ) {
        assert_eq!(selector(wanted).selects(Some(&parse_node_labels(labels).unwrap())), expected);
    }

    #[test]
    fn unknown_node_labels_decide_only_groups_without_a_selector() {
        assert_eq!(selector(&[]).selects(None), Some(true));
        assert_eq!(selector(&["a"]).selects(None), None);
    }

    #[rstest]
    #[case(&["a=1"], &["a=2"], true)]
    #[case(&["a=1"], &["a=1"], false)]
    #[case(&["a=1", "a=2"], &["a=3", "a=4"], true)]
    #[case(&["a=1", "a=2"], &["a=2", "a=3"], false)]
    #[case(&["a=1", "b=1"], &["a=1", "b=2"], true)]
    #[case(&["a=1"], &["b=2"], false)]
    #[case(&["a"], &["a=2"], false)]
    #[case(&["a="], &["a=2"], true)]
    #[case(&["a=1"], &[], false)]
    #[case(&[], &[], false)]
    fn groups_exclude_each_other_by_values_of_one_key(
        #[case] one: &[&str],
        #[case] other: &[&str],
        #[case] expected: bool,
    ) {
        let (one, other) = (selector(one), selector(other));
        assert_eq!((one.excludes(&other), other.excludes(&one)), (expected, expected));
    }

    /// The proof, tried on all selectors and nodes with two keys and two values.
    #[test]
    fn no_node_is_selected_by_two_that_exclude_each_other() {
        let words = ["a", "a=1", "a=2", "b", "b=1", "b=2"];
        let chosen = |bits: u32| {
            let words = words.iter().enumerate().filter(|(index, _)| bits >> index & 1 == 1).map(|(_, word)| *word);
            selector(&words.collect::<Vec<_>>())
        };
        let values = ["", "a=1", "a=2"].into_iter().flat_map(|a| ["", "b=1", "b=2"].map(|b| format!("{a},{b}")));
        let nodes: Vec<_> = values.map(|labels| parse_node_labels(&labels).unwrap()).collect();
        let mut pairs = 0;
        for (one, other) in (0..64).flat_map(|one| (0..64).map(move |other| (chosen(one), chosen(other)))) {
            if one.excludes(&other) {
                pairs += 1;
                let is_both =
                    |labels: &NodeLabels| [&one, &other].map(|it| it.selects(Some(labels))) == [Some(true); 2];
                assert!(!nodes.iter().any(is_both), "{one} and {other}");
            }
        }
        assert!(pairs > 100, "{pairs}");
    }

    #[rstest]
    #[case("topology.kubernetes.io/zone")]
    #[case("a=")]
    #[case("node-role.kubernetes.io/control-plane=")]
    #[case("A_b.c-1=B")]
    fn labels_of_kubernetes_are_taken(#[case] text: &str) {
        text.parse::<WantedLabel>().unwrap();
    }

    #[rstest]
    #[case("", "in its key")]
    #[case("=a", "in its key")]
    #[case("a b", "in its key")]
    #[case("-a", "in its key")]
    #[case("example.com/", "in its key")]
    #[case("a/b/c", "in its key")]
    #[case("a: b", "in its key")]
    #[case("/a", "before the slash")]
    #[case("Example.com/a", "before the slash")]
    #[case("a..b/c", "before the slash")]
    #[case("a=b=c", "its value")]
    #[case("a=b,c=d", "its value")]
    #[case("a==b", "its value")]
    fn what_is_no_label_is_refused(#[case] text: &str, #[case] expected: &str) {
        let said = text.parse::<WantedLabel>().unwrap_err().to_string();
        assert!(said.contains(expected), "{said}");
    }

    #[test]
    fn lengths_are_those_of_kubernetes() {
        let (name, prefix) = ("n".repeat(63), "p".repeat(253));
        format!("{prefix}/{name}={name}").parse::<WantedLabel>().unwrap();
        for (text, expected) in [
            (format!("{name}n"), "in its key"),
            (format!("a={name}n"), "its value"),
            (format!("p{prefix}/a"), "before the slash"),
        ] {
            let error = text.parse::<WantedLabel>().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_selector_is_written_as_kubectl_takes_it() {
        assert_eq!(selector(&["z=b", "z=a", "b", "c="]).to_string(), "b,c=,z in (a,b)");
    }

    #[test]
    fn a_node_has_a_value_of_each_of_its_labels() {
        assert_eq!(parse_node_labels("a=1, b=").unwrap().len(), 2);
        assert!(parse_node_labels("a").unwrap_err().contains("no value"));
        assert!(parse_node_labels("a b=1").unwrap_err().starts_with("each must be"));
    }
}
