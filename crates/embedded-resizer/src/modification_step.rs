//! Decides which VolumeAttributesClass the volume of a claim gets next. Pure.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;

use crate::conditions::{MODIFYING, has_condition};

/// State of a modification in `status.modifyVolumeStatus`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ModifyState {
    /// The class does not exist.
    Pending,
    InProgress,
    Infeasible,
}

/// The next step of a modification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ModificationStep {
    /// The volume has its class, or keeps the one that it has.
    Wait,
    /// The claim requests no class any more: the condition of the modification goes.
    Cancel,
    /// The call for this class may have had an effect, and is repeated.
    Continue(String),
    /// The volume gets the class that the claim requests.
    Begin(String),
}

/// Classes of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimClasses {
    /// The class that the claim requests, empty if none.
    pub(crate) requested: String,
    /// The class that the volume has, empty if none.
    pub(crate) current: String,
    /// The state of a modification, and the class that the volume gets by it.
    pub(crate) status: Option<(ModifyState, String)>,
    is_modifying: bool,
}

impl ModifyState {
    /// Returns the name in the API.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::InProgress => "InProgress",
            Self::Infeasible => "Infeasible",
        }
    }
}

impl ClaimClasses {
    /// Reads the classes of a bound claim; `None` of another.
    pub(crate) fn from_claim(claim: &PersistentVolumeClaim) -> Option<Self> {
        let (spec, status) = (claim.spec.as_ref()?, claim.status.as_ref()?);
        if status.phase.as_deref() != Some("Bound") {
            return None;
        }
        let modification = status.modify_volume_status.as_ref().map(|modification| {
            let state = match modification.status.as_str() {
                "InProgress" => ModifyState::InProgress,
                "Infeasible" => ModifyState::Infeasible,
                _ => ModifyState::Pending,
            };
            (state, modification.target_volume_attributes_class_name.clone().unwrap_or_default())
        });
        Some(Self {
            requested: spec.volume_attributes_class_name.clone().unwrap_or_default(),
            current: status.current_volume_attributes_class_name.clone().unwrap_or_default(),
            status: modification,
            is_modifying: has_condition(claim, MODIFYING),
        })
    }

    /// Decides about the next step. `has_failed` is true if the last call certainly had no effect.
    pub(crate) fn next_step(&self, has_failed: bool) -> ModificationStep {
        if self.status.is_none() && self.requested == self.current {
            return ModificationStep::Wait;
        }
        match &self.status {
            Some((ModifyState::InProgress, target)) if !has_failed || self.requested.is_empty() => {
                ModificationStep::Continue(target.clone())
            }
            _ if !self.requested.is_empty() => ModificationStep::Begin(self.requested.clone()),
            _ if self.is_modifying => ModificationStep::Cancel,
            _ => ModificationStep::Wait,
        }
    }

    /// Returns whether there is nothing to do, whatever happened before.
    pub(crate) fn is_settled(&self) -> bool {
        self.next_step(false) == ModificationStep::Wait
    }

    /// Returns whether the driver has called the requested class infeasible.
    pub(crate) fn is_infeasible(&self) -> bool {
        matches!(&self.status, Some((ModifyState::Infeasible, target)) if *target == self.requested)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::ModificationStep::*;
    use super::*;

    fn classes(requested: &Value, status: &Value) -> ClaimClasses {
        let mut claim = json!({"spec": {"volumeAttributesClassName": requested}, "status": {"phase": "Bound"}});
        json_patch::merge(&mut claim["status"], status);
        ClaimClasses::from_claim(&serde_json::from_value(claim).unwrap()).unwrap()
    }

    fn status(state: &str, target: &str) -> Value {
        json!({"currentVolumeAttributesClassName": "slow",
               "modifyVolumeStatus": {"status": state, "targetVolumeAttributesClassName": target}})
    }

    fn current(class: &str) -> Value {
        json!({"currentVolumeAttributesClassName": class})
    }

    #[rstest]
    #[case::none(json!(null), json!({}), false, Wait)]
    #[case::empty(json!(""), json!({}), false, Wait)]
    #[case::reached(json!("fast"), current("fast"), false, Wait)]
    #[case::first(json!("fast"), json!({}), false, Begin("fast".to_owned()))]
    #[case::other(json!("fast"), current("slow"), false, Begin("fast".to_owned()))]
    #[case::class_missing(json!("fast"), status("Pending", ""), false, Begin("fast".to_owned()))]
    #[case::infeasible(json!("fast"), status("Infeasible", "fast"), true, Begin("fast".to_owned()))]
    #[case::back_after_infeasible(json!("slow"), status("Infeasible", "fast"), true, Begin("slow".to_owned()))]
    #[case::unknown_outcome(json!("fast"), status("InProgress", "fast"), false, Continue("fast".to_owned()))]
    #[case::changed_meanwhile(json!("slow"), status("InProgress", "fast"), false, Continue("fast".to_owned()))]
    #[case::changed_after_a_failure(json!("slow"), status("InProgress", "fast"), true, Begin("slow".to_owned()))]
    #[case::removed_meanwhile(json!(null), status("InProgress", "fast"), true, Continue("fast".to_owned()))]
    #[case::removed(json!(null), current("slow"), false, Wait)]
    #[case::removed_after_infeasible(json!(null), status("Infeasible", "fast"), true, Wait)]
    fn class_follows_the_claim_once_a_call_has_ended(
        #[case] requested: Value,
        #[case] status: Value,
        #[case] has_failed: bool,
        #[case] expected: ModificationStep,
    ) {
        assert_eq!(classes(&requested, &status).next_step(has_failed), expected);
    }

    #[test]
    fn claim_without_a_class_loses_the_condition() {
        let mut infeasible = status("Infeasible", "fast");
        infeasible["conditions"] = json!([{"type": "ModifyingVolume", "status": "True"}]);
        assert_eq!(classes(&json!(null), &infeasible).next_step(false), Cancel);
    }

    #[test]
    fn infeasible_class_is_that_of_the_request() {
        assert!(classes(&json!("fast"), &status("Infeasible", "fast")).is_infeasible());
        assert!(!classes(&json!("slow"), &status("Infeasible", "fast")).is_infeasible());
        assert!(!classes(&json!("fast"), &status("Pending", "fast")).is_infeasible());
    }
}
