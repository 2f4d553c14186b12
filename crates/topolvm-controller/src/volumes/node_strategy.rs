//! Prefers one of the nodes that have enough free space for a volume.

use topolvm_api::NodeStrategy;

/// Returns the preferred node of those that have enough free space for so many bytes, each with its free bytes. Without
/// a strategy, and of equals, it is the first. external-provisioner begins with another node for each claim, so that
/// equals are used in turn.
pub(super) fn preferred_node<N>(
    strategy: Option<NodeStrategy>,
    nodes: impl IntoIterator<Item = (N, u64)>,
    wanted: u64,
) -> Option<N> {
    let mut fitting = nodes.into_iter().filter(|(_, free)| *free >= wanted);
    let (node, _) = match strategy {
        None => fitting.next(),
        Some(NodeStrategy::Spread) => fitting.reduce(|best, node| if node.1 > best.1 { node } else { best }),
        Some(NodeStrategy::Binpack) => fitting.reduce(|best, node| if node.1 < best.1 { node } else { best }),
    }?;
    Some(node)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    const NODES: [(&str, u64); 5] = [("full", 1), ("some", 5), ("most", 9), ("also-most", 9), ("also-some", 5)];

    #[rstest]
    #[case::in_order(None, 2, Some("some"))]
    #[case::the_emptiest(Some(NodeStrategy::Spread), 2, Some("most"))]
    #[case::the_fullest_with_space(Some(NodeStrategy::Binpack), 2, Some("some"))]
    #[case::exactly_as_much(Some(NodeStrategy::Binpack), 9, Some("most"))]
    #[case::without_space(Some(NodeStrategy::Spread), 10, None)]
    fn the_strategy_decides_among_nodes_with_space(
        #[case] strategy: Option<NodeStrategy>,
        #[case] wanted: u64,
        #[case] expected: Option<&str>,
    ) {
        assert_eq!(preferred_node(strategy, NODES, wanted), expected);
    }

    proptest! {
        #[test]
        fn a_node_with_space_is_found_whenever_one_exists(
            free in prop::collection::vec(0_u64..20, 0..8),
            wanted in 0_u64..20,
            strategy in prop::sample::select(vec![None, Some(NodeStrategy::Spread), Some(NodeStrategy::Binpack)]),
        ) {
            let chosen = preferred_node(strategy, free.iter().copied().enumerate(), wanted).map(|node| free[node]);
            prop_assert_eq!(chosen.is_some(), free.iter().any(|free| *free >= wanted));
            let extreme = match strategy {
                None => chosen,
                Some(NodeStrategy::Spread) => free.iter().copied().max().filter(|free| *free >= wanted),
                Some(NodeStrategy::Binpack) => free.iter().copied().filter(|free| *free >= wanted).min(),
            };
            prop_assert_eq!(chosen, extreme);
        }
    }
}
