//! Reads the settings for automatic growth, and the size, from a claim. Pure.

use std::collections::BTreeMap;
use std::str::FromStr;

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::{Resource as _, ResourceExt as _};
use topolvm_api::claim::volume_name;
use topolvm_api::{
    Amount, GROWTH_INCREASE, GROWTH_INODES_THRESHOLD, GROWTH_LIMIT, GROWTH_THRESHOLD, GrowthThresholds, parse_bytes,
};

/// Conditions of a claim whose growth has not ended.
const RESIZING: [&str; 4] = ["Resizing", "FileSystemResizePending", "ControllerResizeError", "NodeResizeError"];

/// A claim with a limit up to which it may grow automatically.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct GrowingClaim {
    pub(super) reference: ObjectReference,
    /// The `resourceVersion` with which it was seen.
    pub(super) version: String,
    pub(super) storage_class: String,
    /// The policy that its annotations ask for, or what is wrong with them.
    pub(super) policy: Result<GrowthPolicy, String>,
    pub(super) size: ClaimSize,
}

/// Policy of growth that the annotations of a claim ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GrowthPolicy {
    /// Size in bytes that the claim never exceeds.
    pub(super) limit: u64,
    pub(super) increase: Amount,
    pub(super) thresholds: GrowthThresholds,
}

/// The size of a claim in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClaimSize {
    pub(super) requested: u64,
    pub(super) capacity: u64,
    /// True until an earlier growth has ended, also one that has failed.
    pub(super) is_resizing: bool,
}

impl GrowingClaim {
    /// Reads a claim; `None` if it is not to grow automatically, or has no filesystem that could fill up.
    pub(super) fn from_claim(claim: &PersistentVolumeClaim) -> Option<(String, Self)> {
        let (spec, status) = (claim.spec.as_ref()?, claim.status.as_ref()?);
        let resources = spec.resources.as_ref()?;
        let limit = claim.annotations().get(GROWTH_LIMIT).filter(|limit| !limit.is_empty());
        let limit = limit.cloned().or_else(|| Some(resources.limits.as_ref()?.get("storage")?.0.clone()))?;
        let is_bound = status.phase.as_deref() == Some("Bound") && claim.metadata.deletion_timestamp.is_none();
        if !is_bound || spec.volume_mode.as_deref() == Some("Block") {
            return None;
        }
        let policy = GrowthPolicy::parse(&limit, claim.annotations());
        if policy.as_ref().is_ok_and(|policy| policy.limit == 0) {
            return None;
        }
        let conditions = status.conditions.iter().flatten();
        let size = ClaimSize {
            requested: parse_bytes(resources.requests.as_ref()?.get("storage")?).ok()?,
            capacity: parse_bytes(status.capacity.as_ref()?.get("storage")?).ok()?,
            is_resizing: conditions
                .into_iter()
                .any(|condition| condition.status == "True" && RESIZING.contains(&condition.type_.as_str()))
                || status.allocated_resource_statuses.as_ref().is_some_and(|states| states.contains_key("storage")),
        };
        let storage_class = spec.storage_class_name.clone()?;
        let (reference, version) = (claim.object_ref(&()), claim.resource_version()?);
        Some((volume_name(claim)?.to_owned(), Self { reference, version, storage_class, policy, size }))
    }
}

impl GrowthPolicy {
    fn parse(limit: &str, annotations: &BTreeMap<String, String>) -> Result<Self, String> {
        let limit = parse_bytes(&Quantity(limit.to_owned())).map_err(|error| format!("{GROWTH_LIMIT}: {error}"))?;
        let inodes = amount(annotations, GROWTH_INODES_THRESHOLD)?;
        if let Amount::Bytes(_) = inodes {
            return Err(format!("{GROWTH_INODES_THRESHOLD} must be a percentage, such as 10%"));
        }
        let thresholds = GrowthThresholds { space: amount(annotations, GROWTH_THRESHOLD)?, inodes };
        Ok(Self { limit, increase: amount(annotations, GROWTH_INCREASE)?, thresholds })
    }
}

/// Returns the amount in an annotation, or the default where there is none.
fn amount(annotations: &BTreeMap<String, String>, key: &str) -> Result<Amount, String> {
    match annotations.get(key).map(String::as_str) {
        None | Some("") => Ok(Amount::DEFAULT),
        Some(text) => Amount::from_str(text).map_err(|error| format!("{key}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    const GIB: u64 = 1 << 30;

    #[expect(clippy::needless_pass_by_value, reason = "callers write the JSON in the call")]
    fn claim(annotations: Value, changes: Value) -> Option<(String, GrowingClaim)> {
        let mut object = json!({
            "metadata": {"name": "data", "namespace": "shop", "uid": "u", "resourceVersion": "7",
                         "annotations": annotations},
            "spec": {"storageClassName": "fast", "volumeName": "pvc-1", "volumeMode": "Filesystem",
                     "resources": {"requests": {"storage": "1Gi"}}},
            "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
        });
        json_patch::merge(&mut object, &changes);
        GrowingClaim::from_claim(&serde_json::from_value(object).unwrap())
    }

    fn limited() -> Value {
        json!({GROWTH_LIMIT: "5Gi"})
    }

    #[test]
    fn annotations_of_pvc_autoresizer_have_its_defaults() {
        let (volume, claim) = claim(limited(), json!({})).unwrap();
        assert_eq!((volume.as_str(), claim.storage_class.as_str()), ("pvc-1", "fast"));
        assert_eq!(claim.reference.name.as_deref(), Some("data"));
        let thresholds = GrowthThresholds { space: Amount::Share(1000), inodes: Amount::Share(1000) };
        assert_eq!(claim.policy, Ok(GrowthPolicy { limit: 5 * GIB, increase: Amount::Share(1000), thresholds }));
        assert_eq!(claim.size, ClaimSize { requested: GIB, capacity: GIB, is_resizing: false });
    }

    #[test]
    fn growth_policy_reads_annotations_and_the_resource_limit() {
        let annotations = json!({GROWTH_THRESHOLD: "2Gi", GROWTH_INODES_THRESHOLD: "0%", GROWTH_INCREASE: "20%"});
        let limits = json!({"spec": {"resources": {"limits": {"storage": "3Gi"}}}});
        let policy = claim(annotations, limits.clone()).unwrap().1.policy.unwrap();
        let thresholds = GrowthThresholds { space: Amount::Bytes(2 * GIB), inodes: Amount::Share(0) };
        assert_eq!(policy, GrowthPolicy { limit: 3 * GIB, increase: Amount::Share(2000), thresholds });
        assert_eq!(claim(limited(), limits).unwrap().1.policy.unwrap().limit, 5 * GIB, "the annotation has precedence");
    }

    #[rstest]
    #[case::no_limit(json!({}), json!({}))]
    #[case::the_limit_zero(json!({GROWTH_LIMIT: "0"}), json!({}))]
    #[case::a_device(limited(), json!({"spec": {"volumeMode": "Block"}}))]
    #[case::not_bound(limited(), json!({"status": {"phase": "Pending"}}))]
    #[case::being_deleted(limited(), json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}))]
    #[case::no_size_yet(limited(), json!({"status": {"capacity": null}}))]
    fn claims_that_cannot_or_should_not_grow_are_left_alone(#[case] annotations: Value, #[case] changes: Value) {
        assert_eq!(claim(annotations, changes), None);
    }

    #[rstest]
    #[case(json!({"conditions": [{"type": "Resizing", "status": "True"}]}), true)]
    #[case(json!({"conditions": [{"type": "FileSystemResizePending", "status": "True"}]}), true)]
    #[case(json!({"conditions": [{"type": "Resizing", "status": "False"}]}), false)]
    #[case(json!({"allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"}}), true)]
    fn a_growth_lasts_until_kubelet_has_ended_it(#[case] status: Value, #[case] expected: bool) {
        let (_, claim) = claim(limited(), json!({"status": status})).unwrap();
        assert_eq!(claim.size.is_resizing, expected);
    }

    #[rstest]
    #[case(json!({GROWTH_LIMIT: "much"}), "resize.topolvm.io/storage_limit: \"much\" is not a quantity")]
    #[case(json!({GROWTH_LIMIT: "1Gi", GROWTH_INCREASE: "200%"}), "/increase: \"200%\" is not a valid amount")]
    #[case(json!({GROWTH_LIMIT: "1Gi", GROWTH_INODES_THRESHOLD: "10"}), "must be a percentage")]
    fn what_is_wrong_is_named(#[case] annotations: Value, #[case] expected: &str) {
        let problem = claim(annotations, json!({})).unwrap().1.policy.unwrap_err();
        assert!(problem.contains(expected), "{problem}");
    }
}
