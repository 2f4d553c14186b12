//! Reasons of pods that are not scheduled: whether they wait with good reason.

use std::collections::BTreeMap;

/// A claim of a pod that is not scheduled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClaimState {
    pub(super) bytes: u64,
    /// Node of its volume, if it has one.
    pub(super) node: Option<String>,
    /// True while a node is selected for a volume that does not exist yet.
    pub(super) is_selected: bool,
}

/// The reason why a pod is not scheduled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// All its volumes exist, or are being created.
    InProgress,
    /// Some of its volumes are on a node that has no space for the others.
    Stranded,
    /// A node has space for it.
    Overlooked,
    /// No node has space for it.
    NoSpace,
}

/// Returns the reason of a pod with these claims, given the free bytes of each node.
pub(super) fn reason_of(claims: &[ClaimState], free: &BTreeMap<String, u64>) -> Reason {
    let missing = claims.iter().filter(|claim| claim.node.is_none());
    if claims.iter().any(|claim| claim.is_selected) || missing.clone().count() == 0 {
        return Reason::InProgress;
    }
    let wanted: u64 = missing.map(|claim| claim.bytes).sum();
    match claims.iter().find_map(|claim| claim.node.as_ref()) {
        Some(node) if free.get(node).is_some_and(|free| *free >= wanted) => Reason::Overlooked,
        Some(_) => Reason::Stranded,
        None if free.values().any(|free| *free >= wanted) => Reason::Overlooked,
        None => Reason::NoSpace,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(bytes: u64, node: Option<&str>) -> ClaimState {
        ClaimState { bytes, node: node.map(str::to_owned), is_selected: false }
    }

    #[test]
    fn waiting_pod_is_justified_only_if_no_node_fits_its_volumes() {
        let free = BTreeMap::from([("a".to_owned(), 3), ("b".to_owned(), 1)]);
        assert_eq!(reason_of(&[claim(3, None)], &free), Reason::Overlooked);
        assert_eq!(reason_of(&[claim(2, None), claim(2, None)], &free), Reason::NoSpace);
        assert_eq!(reason_of(&[claim(9, Some("a")), claim(3, None)], &free), Reason::Overlooked);
        assert_eq!(reason_of(&[claim(9, Some("b")), claim(3, None)], &free), Reason::Stranded);
    }

    #[test]
    fn pod_with_volumes_in_creation_is_in_progress() {
        let free = BTreeMap::from([("a".to_owned(), 3)]);
        assert_eq!(reason_of(&[claim(1, Some("a"))], &free), Reason::InProgress);
        let selected = ClaimState { is_selected: true, ..claim(9, None) };
        assert_eq!(reason_of(&[selected, claim(1, None)], &free), Reason::InProgress);
    }
}
