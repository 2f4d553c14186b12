//! Finds the StatefulSet that makes a claim again when it is gone. Pure.

use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt as _;

/// Finds the StatefulSet of the claim's namespace that has it from a template, for a pod that it is to have.
pub(super) fn find_owner<'a>(claim: &PersistentVolumeClaim, sets: &'a [StatefulSet]) -> Option<&'a StatefulSet> {
    sets.iter().find(|set| set.metadata.deletion_timestamp.is_none() && makes(set, &claim.name_any()))
}

/// Returns whether a StatefulSet makes a claim of this name. Kubernetes names the claims of a StatefulSet
/// `TEMPLATE-STATEFULSET-ORDINAL`, and has them for the pods from `ordinals.start` on.
fn makes(set: &StatefulSet, claim: &str) -> bool {
    let Some(spec) = &set.spec else { return false };
    let first = spec.ordinals.as_ref().and_then(|ordinals| ordinals.start).unwrap_or(0);
    let count = spec.replicas.unwrap_or(1);
    let name = set.name_any();
    spec.volume_claim_templates.iter().flatten().any(|template| {
        let ordinal = claim
            .strip_prefix(template.name_any().as_str())
            .and_then(|rest| rest.strip_prefix('-')?.strip_prefix(name.as_str())?.strip_prefix('-'));
        // As Kubernetes writes it: no sign, and no zero in front
        let parsed = ordinal.and_then(|text| text.parse::<i32>().ok().filter(|number| number.to_string() == text));
        parsed.is_some_and(|ordinal| (first..first.saturating_add(count)).contains(&ordinal))
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;
    use topolvm_testkit::fixtures::claim;

    use super::*;

    #[rstest]
    #[case::the_first("data-db-0", true)]
    #[case::the_last("data-db-2", true)]
    #[case::of_another_template("logs-db-1", true)]
    #[case::of_a_pod_that_it_is_not_to_have("data-db-3", false)]
    #[case::of_another_set("data-web-0", false)]
    #[case::of_no_template("cache-db-0", false)]
    #[case::no_number("data-db-a", false)]
    #[case::no_name_that_kubernetes_gives("data-db-01", false)]
    #[case::a_sign("data-db-+1", false)]
    #[case::its_name_alone("data-db", false)]
    fn only_claims_that_a_template_makes_again_have_an_owner(#[case] name: &str, #[case] expected: bool) {
        let set = json!({
            "metadata": {"name": "db"},
            "spec": {"replicas": 3, "volumeClaimTemplates": [{"metadata": {"name": "data"}},
                                                             {"metadata": {"name": "logs"}}]},
        });
        let sets = [serde_json::from_value::<StatefulSet>(set).unwrap()];
        assert_eq!(find_owner(&claim(name).build(), &sets).is_some(), expected);
    }

    #[test]
    fn stateful_set_owner_respects_start_ordinal_and_deletion() {
        let mut set: StatefulSet = serde_json::from_value(json!({
            "metadata": {"name": "db"},
            "spec": {"ordinals": {"start": 5}, "volumeClaimTemplates": [{"metadata": {"name": "data"}}]},
        }))
        .unwrap();
        let is_owned =
            |name: &str, set: &StatefulSet| find_owner(&claim(name).build(), std::slice::from_ref(set)).is_some();
        assert!(is_owned("data-db-5", &set));
        assert!(!is_owned("data-db-0", &set) && !is_owned("data-db-6", &set));
        set.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert!(!is_owned("data-db-5", &set));
    }
}
