//! Changes of the status of a claim, as merge patches. Pure.
//!
//! A patch names only the fields that change, so that fields of a later Kubernetes stay.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt as _;
use serde_json::{Map, Value, json};
use topolvm_api::{format_bytes, parse_bytes};

use crate::claim_sizes::{ResizeState, STORAGE};
use crate::conditions::{
    CONTROLLER_ERROR, FILESYSTEM_PENDING, MODIFY_CONDITIONS, MODIFY_ERROR, MODIFYING, NewCondition, RESIZE_CONDITIONS,
    RESIZING, has_condition, merge_conditions,
};
use crate::modification_step::{ClaimClasses, ModifyState};

/// Annotation of a claim that the kubelet does not have to grow, and does not.
pub(crate) const NO_NODE_EXPANSION: &str = "volume.kubernetes.io/node-expansion-not-required";

/// A merge patch of annotations and status.
#[derive(Debug, Default)]
pub(crate) struct ClaimChange {
    annotations: Map<String, Value>,
    status: Map<String, Value>,
}

impl ClaimChange {
    /// Returns the patch, which fails if the claim is another version by now; `None` if nothing changes.
    pub(crate) fn into_patch(self, claim: &PersistentVolumeClaim) -> Option<Value> {
        if self.annotations.is_empty() && self.status.is_empty() {
            return None;
        }
        let mut metadata = json!({"uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version});
        if let (false, Some(metadata)) = (self.annotations.is_empty(), metadata.as_object_mut()) {
            metadata.insert("annotations".to_owned(), self.annotations.into());
        }
        Some(json!({"metadata": metadata, "status": self.status}))
    }

    /// Sets the state of the expansion, or removes it.
    fn state(&mut self, claim: &PersistentVolumeClaim, state: Option<ResizeState>) {
        let states = claim.status.as_ref().and_then(|status| status.allocated_resource_statuses.as_ref());
        let name = state.map(ResizeState::name);
        if states.and_then(|states| states.get(STORAGE)).map(String::as_str) != name {
            self.status.insert("allocatedResourceStatuses".to_owned(), json!({STORAGE: name}));
        }
    }

    fn conditions(&mut self, claim: &PersistentVolumeClaim, removed: &[&str], new: &[NewCondition], now: Timestamp) {
        if let Some(merged) = merge_conditions(claim, removed, new, now) {
            self.status.insert("conditions".to_owned(), json!(merged));
        }
    }

    /// Sets or removes the annotation with which the kubelet leaves the volume alone.
    fn no_node_expansion(&mut self, claim: &PersistentVolumeClaim, value: Option<&str>) {
        if claim.annotations().get(NO_NODE_EXPANSION).map(String::as_str) != value {
            self.annotations.insert(NO_NODE_EXPANSION.to_owned(), json!(value));
        }
    }
}

/// An expansion to so many bytes begins, or goes on.
pub(crate) fn expansion_in_progress(claim: &PersistentVolumeClaim, bytes: u64, now: Timestamp) -> ClaimChange {
    let mut change = ClaimChange::default();
    let allocated = claim.status.as_ref().and_then(|status| status.allocated_resources.as_ref());
    let allocated = allocated.and_then(|sizes| parse_bytes(sizes.get(STORAGE)?).ok());
    let is_begun = allocated == Some(bytes);
    let removed: &[&str] = if is_begun { &[] } else { &RESIZE_CONDITIONS };
    change.conditions(claim, removed, &[NewCondition::new(RESIZING)], now);
    if !is_begun {
        change.status.insert("allocatedResources".to_owned(), json!({STORAGE: requested_quantity(claim, bytes)}));
        change.state(claim, Some(ResizeState::ControllerInProgress));
    }
    change.no_node_expansion(claim, None);
    change
}

/// Returns so many bytes in the unit in which the claim requests them, so that users find their number again.
fn requested_quantity(claim: &PersistentVolumeClaim, bytes: u64) -> Quantity {
    let requests = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
    let requested = requests.and_then(|requests| requests.get(STORAGE));
    let has_bytes = |quantity: &&Quantity| parse_bytes(quantity).is_ok_and(|requested| requested == bytes);
    requested.filter(has_bytes).cloned().unwrap_or_else(|| format_bytes(bytes))
}

/// The driver did not expand the volume; `is_infeasible` if it never will to this size.
pub(crate) fn expansion_failed(
    claim: &PersistentVolumeClaim,
    message: &str,
    is_infeasible: bool,
    now: Timestamp,
) -> ClaimChange {
    let mut change = ClaimChange::default();
    if is_infeasible {
        change.state(claim, Some(ResizeState::ControllerInfeasible));
    }
    change.conditions(claim, &[], &[NewCondition::new(CONTROLLER_ERROR).message(message)], now);
    change
}

/// The volume is expanded, and the kubelet has to grow the filesystem.
pub(crate) fn node_expansion_pending(claim: &PersistentVolumeClaim, now: Timestamp) -> ClaimChange {
    let mut change = ClaimChange::default();
    let message = "the kubelet grows the filesystem while a pod uses the volume";
    let pending = NewCondition::new(FILESYSTEM_PENDING).message(message);
    change.conditions(claim, &[CONTROLLER_ERROR], &[pending], now);
    change.state(claim, Some(ResizeState::NodePending));
    change.no_node_expansion(claim, None);
    change
}

/// The volume is expanded to so many bytes, and the kubelet has nothing to do.
pub(crate) fn expansion_finished(claim: &PersistentVolumeClaim, bytes: u64, now: Timestamp) -> ClaimChange {
    let mut change = ClaimChange::default();
    change.status.insert("capacity".to_owned(), json!({STORAGE: format_bytes(bytes)}));
    change.conditions(claim, &RESIZE_CONDITIONS, &[], now);
    change.state(claim, None);
    change.no_node_expansion(claim, Some("true"));
    change
}

/// The requested class does not exist, or is not for this driver.
pub(crate) fn modification_pending(claim: &PersistentVolumeClaim) -> ClaimChange {
    let mut change = ClaimChange::default();
    let is_pending = |classes: ClaimClasses| matches!(classes.status, Some((ModifyState::Pending, _)));
    if !ClaimClasses::from_claim(claim).is_some_and(is_pending) {
        let status = json!({"status": ModifyState::Pending.name()});
        change.status.insert("modifyVolumeStatus".to_owned(), status);
    }
    change
}

/// The modification to this class begins.
pub(crate) fn modification_in_progress(claim: &PersistentVolumeClaim, class: &str, now: Timestamp) -> ClaimChange {
    let mut change = ClaimChange::default();
    let expected = Some((ModifyState::InProgress, class.to_owned()));
    let is_begun = ClaimClasses::from_claim(claim).is_some_and(|classes| classes.status == expected);
    if !is_begun {
        change.modify_status(ModifyState::InProgress, class);
    }
    // The message of an earlier attempt stays, so that another attempt need not be written
    if !is_begun || !has_condition(claim, MODIFYING) {
        let message = format!("the driver applies VolumeAttributesClass {class}");
        change.conditions(claim, &[], &[NewCondition::new(MODIFYING).message(message)], now);
    }
    change
}

/// The driver did not apply the class.
pub(crate) fn modification_failed(
    claim: &PersistentVolumeClaim,
    class: &str,
    failure: &ModifyFailure<'_>,
    now: Timestamp,
) -> ClaimChange {
    let mut change = ClaimChange::default();
    let state = if failure.is_infeasible { ModifyState::Infeasible } else { ModifyState::InProgress };
    let expected = Some((state, class.to_owned()));
    if ClaimClasses::from_claim(claim).is_none_or(|classes| classes.status != expected) {
        change.modify_status(state, class);
    }
    let message = if failure.is_final {
        format!("the driver refused VolumeAttributesClass {class}; the controller tries again")
    } else {
        format!("the driver may still apply VolumeAttributesClass {class}; the controller tries again")
    };
    let modifying = NewCondition::new(MODIFYING).message(message);
    let error = NewCondition {
        kind: MODIFY_ERROR,
        reason: Some(failure.code.clone()),
        message: Some(failure.message.to_owned()),
    };
    change.conditions(claim, &[], &[modifying, error], now);
    change
}

/// A failed modification, as the conditions show it.
#[derive(Debug)]
pub(crate) struct ModifyFailure<'a> {
    pub(crate) code: String,
    pub(crate) message: &'a str,
    pub(crate) is_final: bool,
    pub(crate) is_infeasible: bool,
}

/// The volume has this class.
pub(crate) fn modification_finished(claim: &PersistentVolumeClaim, class: &str, now: Timestamp) -> ClaimChange {
    let mut change = ClaimChange::default();
    change.status.insert("modifyVolumeStatus".to_owned(), Value::Null);
    change.status.insert("currentVolumeAttributesClassName".to_owned(), json!(class));
    change.conditions(claim, &MODIFY_CONDITIONS, &[], now);
    change
}

/// The claim requests no class any more.
pub(crate) fn modification_canceled(claim: &PersistentVolumeClaim, now: Timestamp) -> ClaimChange {
    let mut change = ClaimChange::default();
    change.conditions(claim, &[MODIFYING], &[], now);
    change
}

impl ClaimChange {
    fn modify_status(&mut self, state: ModifyState, class: &str) {
        let status = json!({"status": state.name(), "targetVolumeAttributesClassName": class});
        self.status.insert("modifyVolumeStatus".to_owned(), status);
    }
}

/// Drops what is not needed of a claim while it waits.
pub(crate) fn prune(claim: &PersistentVolumeClaim) -> PersistentVolumeClaim {
    let mut pruned = PersistentVolumeClaim {
        spec: claim.spec.clone(),
        status: claim.status.clone(),
        ..PersistentVolumeClaim::default()
    };
    let annotation = claim.annotations().get_key_value(NO_NODE_EXPANSION);
    pruned.metadata.name.clone_from(&claim.metadata.name);
    pruned.metadata.namespace.clone_from(&claim.metadata.namespace);
    pruned.metadata.uid.clone_from(&claim.metadata.uid);
    pruned.metadata.resource_version.clone_from(&claim.metadata.resource_version);
    pruned.metadata.annotations = annotation.map(|(key, value)| BTreeMap::from([(key.clone(), value.clone())]));
    pruned
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::decimal("200M", 200_000_000, "200M")]
    #[case::fraction("0.5Gi", 512 << 20, "0.5Gi")]
    #[case::other_size("200M", 512 << 20, "512Mi")]
    fn expansion_begins_in_the_unit_of_the_request(#[case] requested: &str, #[case] bytes: u64, #[case] shown: &str) {
        let claim = json!({"spec": {"resources": {"requests": {"storage": requested}}}, "status": {}});
        let claim = serde_json::from_value(claim).unwrap();
        let patch = expansion_in_progress(&claim, bytes, Timestamp::UNIX_EPOCH).into_patch(&claim).unwrap();
        assert_eq!(patch.pointer("/status/allocatedResources/storage"), Some(&json!(shown)));
    }
}
