//! Decides the next step for a claim that has no attempt whose outcome is open. Pure.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Resource as _;
use topolvm_api::claim::{selected_node, volume_name as bound_volume};

use crate::held_claims::is_held;
use crate::known_volumes::NameOwner;
use crate::storage_classes::waits_for_consumer;

/// The facts that decide about a claim.
pub(crate) struct Facts<'a> {
    pub(crate) claim: &'a PersistentVolumeClaim,
    /// Its StorageClass, if it exists and is of this driver.
    pub(crate) class: Option<Arc<StorageClass>>,
    /// The owner of the name of its PersistentVolume.
    pub(crate) name: NameOwner,
    /// True if the same request was refused and is not repeated yet.
    pub(crate) is_refused: bool,
}

/// The next step for a claim.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Nothing, until one of the facts changes.
    Wait,
    /// The claim has a PersistentVolume: it is not held any more.
    Release,
    /// Its volume is created.
    Create(Arc<StorageClass>),
    /// The claim is being deleted, and an earlier process may have created its volume: only the same request shows
    /// whether it has.
    Repeat(Arc<StorageClass>),
    /// The same, but the request cannot be repeated without the StorageClass.
    Abandon,
    /// A PersistentVolume that is not of this claim has the name: nothing is created until it is gone.
    ReportTakenName,
}

impl Facts<'_> {
    /// Returns the next step.
    pub(crate) fn next_step(self) -> Step {
        let Self { claim, class, name, is_refused } = self;
        if bound_volume(claim).is_some() || name == NameOwner::Claim {
            return Step::Release;
        }
        let is_deleting = claim.meta().deletion_timestamp.is_some();
        let is_left = is_deleting && is_held(claim);
        let Some(class) = class else { return if is_left { Step::Abandon } else { Step::Wait } };
        if is_refused {
            return Step::Wait;
        }
        if is_left {
            return Step::Repeat(class);
        }
        let is_selected = selected_node(claim).is_some_and(|node| !node.is_empty());
        if is_deleting || (waits_for_consumer(&class) && !is_selected) {
            return Step::Wait;
        }
        if name == NameOwner::Other { Step::ReportTakenName } else { Step::Create(class) }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};
    use topolvm_testkit::fixtures::storage_class;

    use super::*;

    /// Returns a claim with these properties.
    fn claim(properties: &str) -> PersistentVolumeClaim {
        let mut claim = json!({"metadata": {"name": "data", "annotations": {}}, "spec": {}});
        for property in properties.split_whitespace() {
            let (pointer, key, value): (_, _, Value) = match property {
                "bound" => ("/spec", "volumeName", json!("pvc-1")),
                "deleted" => ("/metadata", "deletionTimestamp", json!("2026-01-01T00:00:00Z")),
                "held" => ("/metadata", "finalizers", json!(["topolvm.io/provisioning"])),
                "selected" => ("/metadata/annotations", "volume.kubernetes.io/selected-node", json!("n1")),
                "deselected" => ("/metadata/annotations", "volume.kubernetes.io/selected-node", json!("")),
                other => panic!("unknown: {other}"),
            };
            claim.pointer_mut(pointer).unwrap()[key] = value;
        }
        serde_json::from_value(claim).unwrap()
    }

    const FREE: NameOwner = NameOwner::None;
    const OWN: NameOwner = NameOwner::Claim;
    const TAKEN: NameOwner = NameOwner::Other;

    #[rstest]
    #[case::selected("selected", "late", FREE, "Create")]
    #[case::without_node("", "late", FREE, "Wait")]
    #[case::deselected("deselected", "late", FREE, "Wait")]
    #[case::immediate("", "immediate", FREE, "Create")]
    #[case::immediate_with_node("selected", "immediate", FREE, "Create")]
    #[case::held("selected held", "late", FREE, "Create")]
    #[case::held_without_node("held", "late", FREE, "Wait")]
    #[case::without_class("selected", "none", FREE, "Wait")]
    #[case::held_without_class("selected held", "none", FREE, "Wait")]
    #[case::refused("selected", "refused", FREE, "Wait")]
    #[case::deleted("selected deleted", "late", FREE, "Wait")]
    #[case::deleted_immediate("deleted", "immediate", FREE, "Wait")]
    #[case::deleted_and_held("selected deleted held", "late", FREE, "Repeat")]
    #[case::deleted_and_held_without_node("deleted held", "late", FREE, "Repeat")]
    #[case::deleted_and_held_without_class("deleted held", "none", FREE, "Abandon")]
    #[case::deleted_and_held_refused("deleted held", "refused", FREE, "Wait")]
    #[case::bound("selected bound", "late", FREE, "Release")]
    #[case::bound_and_held("bound held", "none", FREE, "Release")]
    #[case::bound_and_deleted("bound deleted held", "late", TAKEN, "Release")]
    #[case::provisioned("selected", "late", OWN, "Release")]
    #[case::provisioned_and_deleted("deleted held", "none", OWN, "Release")]
    #[case::provisioned_without_node("", "late", OWN, "Release")]
    #[case::name_taken("selected", "late", TAKEN, "ReportTakenName")]
    #[case::name_taken_immediate("", "immediate", TAKEN, "ReportTakenName")]
    #[case::name_taken_without_node("", "late", TAKEN, "Wait")]
    #[case::name_taken_and_refused("selected", "refused", TAKEN, "Wait")]
    #[case::name_taken_and_deleted("deleted", "immediate", TAKEN, "Wait")]
    // The earlier process may have created the volume before another one took the name
    #[case::name_taken_and_deleted_and_held("deleted held", "late", TAKEN, "Repeat")]
    fn next_step_follows_from_the_facts(
        #[case] properties: &str,
        #[case] class: &str,
        #[case] name: NameOwner,
        #[case] expected: &str,
    ) {
        let mut object = storage_class("fast").build();
        let mode = if class == "immediate" { "Immediate" } else { "WaitForFirstConsumer" };
        object.volume_binding_mode = Some(mode.to_owned());
        let facts = Facts {
            claim: &claim(properties),
            class: (class != "none").then(|| Arc::new(object)),
            name,
            is_refused: class == "refused",
        };
        let step = match facts.next_step() {
            Step::Wait => "Wait",
            Step::Release => "Release",
            Step::Create(_) => "Create",
            Step::Repeat(_) => "Repeat",
            Step::Abandon => "Abandon",
            Step::ReportTakenName => "ReportTakenName",
        };
        assert_eq!(step, expected);
    }
}
