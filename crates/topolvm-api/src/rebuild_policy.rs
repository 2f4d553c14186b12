//! Reads from a claim and its StorageClass when the claim is recreated, empty, because its node is lost.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use kube_core::ResourceExt as _;

use crate::flavor::ApiFlavor;

/// The finalizers on claims that are being deleted so that their StatefulSets recreate them, of both API groups.
pub const REBUILDING_FINALIZERS: [&str; 2] = [ApiFlavor::TopoLvm.rebuilding(), ApiFlavor::Legacy.rebuilding()];

/// Values of `topolvm.io/rebuild`.
const VALUES: [(&str, RebuildTrigger); 3] = [
    ("never", RebuildTrigger::Never),
    ("on-node-deleted", RebuildTrigger::NodeDeleted),
    ("on-out-of-service-taint", RebuildTrigger::OutOfServiceTaint),
];

/// The loss of a node after which a claim is recreated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RebuildTrigger {
    /// None.
    #[default]
    Never,
    /// Its Node is deleted.
    NodeDeleted,
    /// Its Node is deleted, or an administrator has declared it out of service with a taint.
    OutOfServiceTaint,
}

/// The policy of a claim: whether it is recreated, and what stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RebuildPolicy {
    /// The loss of its node after which it is recreated.
    pub trigger: RebuildTrigger,
    /// The PersistentVolume is kept.
    pub keeps_volume: bool,
}

/// A value of `topolvm.io/rebuild` or `topolvm.io/rebuild-keep` that means nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} is {value:?}; supported values: {}", possible.join(", "))]
pub struct RebuildPolicyError {
    key: &'static str,
    value: String,
    possible: Vec<&'static str>,
}

/// The policies that the StorageClasses of this driver, and their claims, ask for.
#[derive(Clone, Debug)]
pub struct RebuildPolicies {
    flavor: ApiFlavor,
    /// Parameters of the StorageClasses by their names.
    parameters: HashMap<String, BTreeMap<String, String>>,
}

impl RebuildPolicy {
    /// Returns whether the claim is recreated after some loss of its node.
    pub fn is_on(self) -> bool {
        self.trigger != RebuildTrigger::Never
    }
}

impl RebuildPolicies {
    /// Reads the StorageClasses, of which others than those of this driver do not count.
    pub fn new<'a>(flavor: ApiFlavor, classes: impl Iterator<Item = &'a StorageClass>) -> Self {
        let ours = classes.filter(|class| class.provisioner == flavor.driver_name());
        let parameters = ours.map(|class| (class.name_any(), class.parameters.clone().unwrap_or_default())).collect();
        Self { flavor, parameters }
    }

    /// Returns the policy of a claim: each of its annotations counts more than the parameter of its StorageClass.
    pub fn of(&self, claim: &PersistentVolumeClaim) -> Result<RebuildPolicy, RebuildPolicyError> {
        let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref());
        self.of_fields(class, |key| claim.annotations().get(key).map(String::as_str))
    }

    /// Returns the policy of the claim with this StorageClass and these annotations.
    pub fn of_fields<'a>(
        &'a self,
        class: Option<&str>,
        annotation: impl Fn(&str) -> Option<&'a str>,
    ) -> Result<RebuildPolicy, RebuildPolicyError> {
        let parameters = class.and_then(|class| self.parameters.get(class));
        let find = |key: &str| annotation(key).or_else(|| parameters?.get(key).map(String::as_str));
        let trigger = parse(self.flavor.rebuild(), find(self.flavor.rebuild()), &VALUES)?;
        let flags = [("true", true), ("false", false)];
        let keeps_volume = parse(self.flavor.rebuild_keep(), find(self.flavor.rebuild_keep()), &flags)?;
        Ok(RebuildPolicy { trigger, keeps_volume })
    }
}

/// Finds a value among those that are possible. None, and an empty one, is the default.
fn parse<T: Copy + Default>(
    key: &'static str,
    value: Option<&str>,
    possible: &[(&'static str, T)],
) -> Result<T, RebuildPolicyError> {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(T::default()) };
    let found = possible.iter().find(|(name, _)| *name == value).map(|(_, meaning)| *meaning);
    let names = possible.iter().map(|(name, _)| *name).collect();
    found.ok_or_else(|| RebuildPolicyError { key, value: value.to_owned(), possible: names })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn object<T: DeserializeOwned>(json: Value) -> T {
        serde_json::from_value(json).unwrap()
    }

    fn policy(parameters: &[(&str, &str)], annotations: &[(&str, &str)]) -> Result<RebuildPolicy, RebuildPolicyError> {
        let map = |pairs: &[(&str, &str)]| pairs.iter().map(|&(key, value)| (key.to_owned(), json!(value))).collect();
        let (parameters, annotations) = (Value::Object(map(parameters)), Value::Object(map(annotations)));
        let class = json!({"metadata": {"name": "fast"}, "provisioner": "topolvm.io", "parameters": parameters});
        let claim = json!({"metadata": {"name": "data", "annotations": annotations},
                           "spec": {"storageClassName": "fast"}});
        RebuildPolicies::new(ApiFlavor::TopoLvm, [object(class)].iter()).of(&object(claim))
    }

    #[rstest]
    #[case::neither_says_anything(&[], &[], RebuildTrigger::Never)]
    #[case::the_class_says_it(&[("topolvm.io/rebuild", "on-node-deleted")], &[], RebuildTrigger::NodeDeleted)]
    #[case::the_claim_wins(
        &[("topolvm.io/rebuild", "on-node-deleted")], &[("topolvm.io/rebuild", "never")], RebuildTrigger::Never
    )]
    #[case::the_claim_alone(
        &[], &[("topolvm.io/rebuild", "on-out-of-service-taint")], RebuildTrigger::OutOfServiceTaint
    )]
    #[case::of_the_other_group(&[("topolvm.cybozu.com/rebuild", "on-node-deleted")], &[], RebuildTrigger::Never)]
    fn the_annotation_of_the_claim_counts_more_than_its_class(
        #[case] parameters: &[(&str, &str)],
        #[case] annotations: &[(&str, &str)],
        #[case] expected: RebuildTrigger,
    ) {
        assert_eq!(policy(parameters, annotations), Ok(RebuildPolicy { trigger: expected, keeps_volume: false }));
    }

    #[test]
    fn rebuild_policy_error_names_the_supported_values() {
        let error = policy(&[], &[("topolvm.io/rebuild", "always")]).unwrap_err().to_string();
        assert_eq!(
            error,
            "topolvm.io/rebuild is \"always\"; supported values: never, on-node-deleted, on-out-of-service-taint"
        );
        let error = policy(&[("topolvm.io/rebuild-keep", "yes")], &[]).unwrap_err().to_string();
        assert_eq!(error, "topolvm.io/rebuild-keep is \"yes\"; supported values: true, false");
    }

    #[test]
    fn each_key_is_read_separately() {
        let keeps = [("topolvm.io/rebuild-keep", "true")];
        let found = policy(&[("topolvm.io/rebuild", "on-node-deleted")], &keeps).unwrap();
        assert_eq!(found, RebuildPolicy { trigger: RebuildTrigger::NodeDeleted, keeps_volume: true });
    }
}
