//! The topologies in which a volume may be. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::TopologySelectorTerm;
use topolvm_proto::csi::{Topology, TopologyRequirement};

/// Returns the requirement that the volume is in one of these segments of `key`, the first ones preferred.
pub(crate) fn requirement(key: &str, preferred: &[String]) -> TopologyRequirement {
    let topology = |value: &String| Topology { segments: [(key.to_owned(), value.clone())].into() };
    let mut requisite = preferred.to_vec();
    requisite.sort();
    TopologyRequirement {
        requisite: requisite.iter().map(topology).collect(),
        preferred: preferred.iter().map(topology).collect(),
    }
}

/// Sorts segments, and rotates them so that claims begin at different ones, and those of a StatefulSet one after the
/// other.
pub(crate) fn spread(mut segments: Vec<String>, claim: &str) -> Vec<String> {
    segments.sort();
    segments.dedup();
    let count = u32::try_from(segments.len()).unwrap_or(u32::MAX);
    if count > 0 {
        let (hash, ordinal) = hash_and_ordinal(claim);
        let start = hash.wrapping_add(ordinal) % count;
        segments.rotate_left(usize::try_from(start).unwrap_or_default());
    }
    segments
}

/// Returns whether a node with these labels is in one of the allowed topologies. All are, where none are named.
pub(crate) fn is_allowed(allowed: &[TopologySelectorTerm], labels: &BTreeMap<String, String>) -> bool {
    let is_in = |term: &TopologySelectorTerm| {
        let mut requirements = term.match_label_expressions.iter().flatten();
        requirements.all(|requirement| {
            labels.get(&requirement.key).is_some_and(|value| requirement.values.iter().any(|one| one == value))
        })
    };
    allowed.is_empty() || allowed.iter().any(is_in)
}

/// Returns whether the allowed topologies name other labels than this one.
pub(crate) fn names_other_labels(allowed: &[TopologySelectorTerm], key: &str) -> bool {
    let mut requirements = allowed.iter().flat_map(|term| term.match_label_expressions.iter().flatten());
    requirements.any(|requirement| requirement.key != key)
}

/// Returns the hash of a claim's name that Kubernetes uses to spread volumes over zones, and the ordinal of its pod. In
/// `CLAIM-STATEFULSET-ORDINAL` only the name of the StatefulSet is hashed, so that all claims of a pod begin at the
/// same segment.
fn hash_and_ordinal(claim: &str) -> (u32, u32) {
    let numbered = claim.rsplit_once('-').and_then(|(name, ordinal)| Some((name, parse_ordinal(ordinal)?)));
    let Some((name, ordinal)) = numbered else { return (fnv1(claim), 0) };
    (fnv1(name.rsplit_once('-').map_or(name, |(_, set)| set)), ordinal)
}

fn parse_ordinal(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// The hash FNV-1 with 32 bits.
fn fnv1(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash: u32, byte| hash.wrapping_mul(0x0100_0193) ^ u32::from(byte))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn hash_is_fnv1() {
        // Published test vectors
        assert_eq!([fnv1(""), fnv1("a"), fnv1("foobar")], [0x811c_9dc5, 0x050c_5d7e, 0x31f0_b262]);
    }

    #[rstest]
    #[case("www-web-0", (fnv1("web"), 0))]
    #[case("www-web-12", (fnv1("web"), 12))]
    #[case("data-3", (fnv1("data"), 3))]
    #[case("data", (fnv1("data"), 0))]
    #[case("my-data", (fnv1("my-data"), 0))]
    #[case("data-+3", (fnv1("data-+3"), 0))]
    #[case("data-4294967296", (fnv1("data-4294967296"), 0))]
    fn claim_name_is_hashed_without_its_ordinal(#[case] claim: &str, #[case] expected: (u32, u32)) {
        assert_eq!(hash_and_ordinal(claim), expected);
    }

    #[test]
    fn claims_of_a_stateful_set_begin_at_neighbouring_segments() {
        let segments = || names(&["n3", "n1", "n2", "n1"]);
        let first = |claim: &str| spread(segments(), claim)[0].clone();
        let starts: Vec<_> = (0..3).map(|ordinal| first(&format!("www-web-{ordinal}"))).collect();
        let mut sorted = starts.clone();
        sorted.sort();
        assert_eq!(sorted, ["n1", "n2", "n3"]);
        assert_eq!(first("log-web-1"), starts[1]);
        assert_eq!(spread(segments(), "www-web-0").len(), 3);
        assert!(spread(Vec::new(), "data").is_empty());
    }

    #[test]
    fn requirement_is_sorted_and_its_preference_is_not() {
        let requirement = requirement("k", &names(&["b", "a"]));
        let values = |topologies: &[Topology]| topologies.iter().map(|one| one.segments["k"].clone()).collect();
        let (requisite, preferred): (Vec<_>, Vec<_>) = (values(&requirement.requisite), values(&requirement.preferred));
        assert_eq!((requisite, preferred), (names(&["a", "b"]), names(&["b", "a"])));
    }

    #[test]
    fn allowed_topologies_match_any_label_of_a_node() {
        let term = |expressions: serde_json::Value| -> TopologySelectorTerm {
            serde_json::from_value(json!({"matchLabelExpressions": expressions})).unwrap()
        };
        let allowed = [
            term(json!([{"key": "zone", "values": ["z1", "z2"]}, {"key": "rack", "values": ["r1"]}])),
            term(json!([{"key": "node", "values": ["n9"]}])),
        ];
        let labels = |labels: &[(&str, &str)]| {
            labels.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect::<BTreeMap<_, _>>()
        };
        assert!(is_allowed(&allowed, &labels(&[("zone", "z2"), ("rack", "r1")])));
        assert!(is_allowed(&allowed, &labels(&[("node", "n9")])));
        assert!(!is_allowed(&allowed, &labels(&[("zone", "z2"), ("rack", "r2")])));
        assert!(!is_allowed(&allowed, &labels(&[("zone", "z2")])));
        assert!(is_allowed(&[], &labels(&[])));
        assert!(names_other_labels(&allowed, "node"));
        assert!(!names_other_labels(&allowed[1..], "node"));
    }
}
