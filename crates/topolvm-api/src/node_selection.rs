//! Selection of the nodes that have storage, by their labels.
//!
//! A node with one of the selecting labels takes volumes. One that has lost the label keeps its volumes until the last
//! of them is gone, and is marked with a separate label until then.

use std::collections::BTreeMap;
use std::str::FromStr;

/// Label that selects a node in `deploy/manifests/components/node-label`, and its value.
pub const STORAGE_LABEL: (&str, &str) = ("topolvm.io/storage", "enabled");
/// Label that selects a node in the guide of `SuperEdge`, and its value.
pub const SUPEREDGE_LABEL: (&str, &str) = ("superedge.io/local.pv", "topolvm");
/// Label of a node that has volumes, where nodes are selected by labels, and its value.
pub const HAS_VOLUMES_LABEL: (&str, &str) = ("topolvm.io/has-volumes", "true");

/// The labels that select nodes, any of which is enough. Without labels all nodes are selected.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSelection {
    labels: Vec<(String, String)>,
}

/// State of a node in a selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// It takes volumes.
    Selected,
    /// It keeps the volumes that it has, and takes no new ones.
    Retained,
    /// It has neither a selecting label nor volumes.
    Excluded,
}

/// The text is no list of labels.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a label; write KEY=VALUE, and separate several labels with commas")]
pub struct ParseNodeSelectionError(String);

impl NodeSelection {
    /// Returns true if all nodes are selected, whatever their labels.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        self.labels.is_empty()
    }

    /// Returns true if the state of a node depends on the label of this key.
    #[must_use]
    pub fn reads(&self, key: &str) -> bool {
        !self.is_everything() && (key == HAS_VOLUMES_LABEL.0 || self.labels.iter().any(|(wanted, _)| wanted == key))
    }

    /// Returns the state of a node with these labels.
    #[must_use]
    pub fn state(&self, labels: Option<&BTreeMap<String, String>>) -> NodeState {
        let has =
            |key: &str, value: &str| labels.and_then(|labels| labels.get(key)).is_some_and(|found| found == value);
        if self.is_everything() || self.labels.iter().any(|(key, value)| has(key, value)) {
            NodeState::Selected
        } else if has(HAS_VOLUMES_LABEL.0, HAS_VOLUMES_LABEL.1) {
            NodeState::Retained
        } else {
            NodeState::Excluded
        }
    }
}

impl FromStr for NodeSelection {
    type Err = ParseNodeSelectionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let label = |word: &str| match word.trim().split_once('=') {
            Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
            Some(_) | None => Err(ParseNodeSelectionError(word.to_owned())),
        };
        let words = text.split(',').filter(|word| !word.trim().is_empty());
        Ok(Self { labels: words.map(label).collect::<Result<_, _>>()? })
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("", &[], NodeState::Selected)]
    #[case("a=1,b=2", &[("a", "1")], NodeState::Selected)]
    #[case("a=1, b=2", &[("b", "2"), ("topolvm.io/has-volumes", "true")], NodeState::Selected)]
    #[case("a=1", &[("a", "2"), ("topolvm.io/has-volumes", "true")], NodeState::Retained)]
    #[case("a=1", &[("a", "2")], NodeState::Excluded)]
    #[case("a=1", &[], NodeState::Excluded)]
    fn node_state_is_selected_by_any_label_and_retained_by_volumes(
        #[case] selection: &str,
        #[case] labels: &[(&str, &str)],
        #[case] expected: NodeState,
    ) {
        let selection: NodeSelection = selection.parse().unwrap();
        let labels = labels.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect();
        assert_eq!(selection.state(Some(&labels)), expected);
    }

    #[test]
    fn what_is_no_label_is_refused() {
        for (text, wrong) in [("a", "a"), ("=b", "=b"), ("a=1,b", "b")] {
            assert_eq!(text.parse::<NodeSelection>(), Err(ParseNodeSelectionError(wrong.to_owned())));
        }
    }
}
