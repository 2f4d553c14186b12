//! CSI topology: one segment per node, whose value is the node's name.

use topolvm_api::ApiFlavor;
use topolvm_proto::csi::{Topology, TopologyRequirement};

use crate::volumes::Placement;

/// A topology requirement without a segment of this driver.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "accessibility_requirements contain no {0}; check that topolvm-node runs on the node, and that allowedTopologies \
     of the StorageClass use only this key"
)]
pub(crate) struct MissingSegment(&'static str);

/// Parses the nodes on which a volume may be. CSI has the preferred topologies in the order of preference, and every
/// one of them among the requisite ones unless those are empty.
pub(crate) fn parse_placement(
    flavor: ApiFlavor,
    requirement: Option<&TopologyRequirement>,
) -> Result<Placement, MissingSegment> {
    let Some(requirement) = requirement else {
        return Ok(Placement::Anywhere);
    };
    let mut topologies = requirement.preferred.iter().chain(&requirement.requisite).peekable();
    if topologies.peek().is_none() {
        return Ok(Placement::Anywhere);
    }
    let mut nodes = topologies.filter_map(|topology| node_segment(flavor, topology)).map(str::to_owned);
    let first = nodes.next().ok_or_else(|| MissingSegment(flavor.topology_key()))?;
    let others = nodes.filter(|node| *node != first).collect();
    Ok(Placement::Nodes { first, others })
}

/// Returns the value of this driver's segment in a topology, a node's name.
pub(crate) fn node_segment(flavor: ApiFlavor, topology: &Topology) -> Option<&str> {
    let value = topology.segments.get(flavor.topology_key())?;
    Some(value.as_str()).filter(|value| !value.is_empty())
}

/// Returns the topology from which the volumes of a node can be reached.
pub(crate) fn node_topology(flavor: ApiFlavor, node: String) -> Topology {
    Topology { segments: [(flavor.topology_key().to_owned(), node)].into() }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const FLAVOR: ApiFlavor = ApiFlavor::Legacy;

    fn topologies(nodes: &[&str]) -> Vec<Topology> {
        nodes
            .iter()
            .map(|node| match node.strip_prefix("foreign:") {
                Some(value) => {
                    Topology { segments: [("topology.kubernetes.io/zone".to_owned(), value.to_owned())].into() }
                }
                None => node_topology(FLAVOR, (*node).to_owned()),
            })
            .collect()
    }

    #[rstest]
    #[case::preferred_comes_first(&["n2", "n1"], &["n1", "n2", "n3"], "n2")]
    #[case::requisite_alone(&[], &["n3", "n1"], "n3")]
    #[case::entries_of_other_drivers_are_skipped(&["foreign:z1"], &["foreign:z1", "", "n1"], "n1")]
    fn the_first_entry_with_our_key_is_the_node(
        #[case] preferred: &[&str],
        #[case] requisite: &[&str],
        #[case] node: &str,
    ) {
        let requirement = TopologyRequirement { preferred: topologies(preferred), requisite: topologies(requisite) };
        let Ok(Placement::Nodes { first, .. }) = parse_placement(FLAVOR, Some(&requirement)) else { panic!("no node") };
        assert_eq!(first, node);
    }

    #[test]
    fn without_a_requirement_any_node_will_do() {
        assert_eq!(parse_placement(FLAVOR, None), Ok(Placement::Anywhere));
        let empty = TopologyRequirement::default();
        assert_eq!(parse_placement(FLAVOR, Some(&empty)), Ok(Placement::Anywhere));
    }

    #[test]
    fn a_requirement_that_names_no_node_of_ours_is_refused() {
        let requirement =
            TopologyRequirement { preferred: topologies(&["foreign:z1"]), requisite: vec![Topology::default()] };
        assert_eq!(
            parse_placement(FLAVOR, Some(&requirement)),
            Err(MissingSegment("topology.topolvm.cybozu.com/node"))
        );
    }
}
