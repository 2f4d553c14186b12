//! Reads from a claim and its StorageClass when the claim is recreated, empty, because its node is lost. Pure.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt as _;
use topolvm_api::ApiFlavor;

/// Values of `topolvm.io/rebuild`.
const VALUES: [(&str, Trigger); 3] = [
    ("never", Trigger::Never),
    ("on-node-deleted", Trigger::NodeDeleted),
    ("on-out-of-service-taint", Trigger::OutOfServiceTaint),
];

/// The loss of a node after which a claim is recreated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) enum Trigger {
    #[default]
    Never,
    /// Its Node is deleted.
    NodeDeleted,
    /// Its Node is deleted, or an administrator has declared it out of service with a taint.
    OutOfServiceTaint,
}

/// Policy of a claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Policy {
    pub(super) trigger: Trigger,
    /// The PersistentVolume is kept.
    pub(super) keeps_volume: bool,
}

/// A value of `topolvm.io/rebuild` or `topolvm.io/rebuild-keep` that means nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} is {value:?}; supported values: {}", possible.join(", "))]
pub(in super::super) struct PolicyError {
    key: &'static str,
    value: String,
    possible: Vec<&'static str>,
}

/// Parameters of the StorageClasses of this driver, by their names.
#[derive(Clone, Debug)]
pub(in super::super) struct ClassPolicies {
    flavor: ApiFlavor,
    parameters: HashMap<String, BTreeMap<String, String>>,
}

impl Policy {
    /// Returns whether the claim is recreated after some loss of its node.
    pub(in super::super) fn is_on(self) -> bool {
        self.trigger != Trigger::Never
    }
}

impl ClassPolicies {
    pub(in super::super) fn new<'a>(flavor: ApiFlavor, classes: impl Iterator<Item = &'a StorageClass>) -> Self {
        let ours = classes.filter(|class| class.provisioner == flavor.driver_name());
        let parameters = ours.map(|class| (class.name_any(), class.parameters.clone().unwrap_or_default())).collect();
        Self { flavor, parameters }
    }

    /// Returns the policy of a claim: each of its annotations counts more than the parameter of its StorageClass.
    pub(in super::super) fn of(&self, claim: &PersistentVolumeClaim) -> Result<Policy, PolicyError> {
        let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_ref());
        let parameters = class.and_then(|class| self.parameters.get(class));
        let find = |key: &str| claim.annotations().get(key).or_else(|| parameters?.get(key)).map(String::as_str);
        let trigger = parse(self.flavor.rebuild(), find(self.flavor.rebuild()), &VALUES)?;
        let flags = [("true", true), ("false", false)];
        let keeps_volume = parse(self.flavor.rebuild_keep(), find(self.flavor.rebuild_keep()), &flags)?;
        Ok(Policy { trigger, keeps_volume })
    }
}

/// Finds a value among those that are possible. None, and an empty one, is the default.
fn parse<T: Copy + Default>(
    key: &'static str,
    value: Option<&str>,
    possible: &[(&'static str, T)],
) -> Result<T, PolicyError> {
    let Some(value) = value.filter(|value| !value.is_empty()) else { return Ok(T::default()) };
    let found = possible.iter().find(|(name, _)| *name == value).map(|(_, meaning)| *meaning);
    let names = possible.iter().map(|(name, _)| *name).collect();
    found.ok_or_else(|| PolicyError { key, value: value.to_owned(), possible: names })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use topolvm_testkit::fixtures::{claim, storage_class};

    use super::*;

    fn policy(parameters: &[(&str, &str)], annotations: &[(&str, &str)]) -> Result<Policy, PolicyError> {
        let class = parameters.iter().fold(storage_class("fast"), |class, (key, value)| class.parameter(key, value));
        let mut claim = claim("data").class("fast").build();
        let annotations = annotations.iter().map(|&(key, value)| (key.to_owned(), value.to_owned()));
        claim.annotations_mut().extend(annotations);
        ClassPolicies::new(ApiFlavor::TopoLvm, [class.build()].iter()).of(&claim)
    }

    #[rstest]
    #[case::neither_says_anything(&[], &[], Trigger::Never)]
    #[case::the_class_says_it(&[("topolvm.io/rebuild", "on-node-deleted")], &[], Trigger::NodeDeleted)]
    #[case::the_claim_wins(
        &[("topolvm.io/rebuild", "on-node-deleted")], &[("topolvm.io/rebuild", "never")], Trigger::Never
    )]
    #[case::the_claim_alone(&[], &[("topolvm.io/rebuild", "on-out-of-service-taint")], Trigger::OutOfServiceTaint)]
    #[case::of_the_other_group(&[("topolvm.cybozu.com/rebuild", "on-node-deleted")], &[], Trigger::Never)]
    fn the_annotation_of_the_claim_counts_more_than_its_class(
        #[case] parameters: &[(&str, &str)],
        #[case] annotations: &[(&str, &str)],
        #[case] expected: Trigger,
    ) {
        assert_eq!(policy(parameters, annotations), Ok(Policy { trigger: expected, keeps_volume: false }));
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
    fn each_key_is_looked_for_by_itself() {
        let keeps = [("topolvm.io/rebuild-keep", "true")];
        let found = policy(&[("topolvm.io/rebuild", "on-node-deleted")], &keeps).unwrap();
        assert_eq!(found, Policy { trigger: Trigger::NodeDeleted, keeps_volume: true });
    }
}
