//! Reads from a claim what it requests, and whether that is new. Pure.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use topolvm_api::claim::volume_name;

use crate::claim_sizes::{ClaimSizes, ResizeState};
use crate::modification_step::ClaimClasses;

/// Requests of a claim that are not fulfilled yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimRequests {
    /// UID of the claim and name of its PersistentVolume.
    pub(crate) binding: Binding,
    pub(crate) expansion: Option<ExpansionRequest>,
    pub(crate) modification: Option<ModificationRequest>,
}

/// A claim and its volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Binding {
    pub(crate) uid: String,
    pub(crate) volume: String,
}

/// A requested size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExpansionRequest {
    requested: u64,
    capacity: u64,
    phase: Phase,
}

/// The part of an expansion that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// None, as far as is known.
    Settled,
    Controller,
    Node,
    /// The kubelet has failed, and waits for the controller.
    NodeInfeasible,
}

/// A requested VolumeAttributesClass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModificationRequest {
    requested: String,
    current: String,
    has_status: bool,
}

impl ClaimRequests {
    /// Reads a claim; `None` if it has what it requests.
    pub(crate) fn from_claim(claim: &PersistentVolumeClaim) -> Option<Self> {
        let expansion = ExpansionRequest::from_claim(claim);
        let modification = ModificationRequest::from_claim(claim);
        if expansion.is_none() && modification.is_none() {
            return None;
        }
        let binding = Binding { uid: claim.metadata.uid.clone()?, volume: volume_name(claim)?.to_owned() };
        Some(Self { binding, expansion, modification })
    }
}

impl ExpansionRequest {
    fn from_claim(claim: &PersistentVolumeClaim) -> Option<Self> {
        let sizes = ClaimSizes::from_claim(claim).filter(ClaimSizes::requests_more)?;
        let phase = match sizes.state {
            None | Some(ResizeState::Unknown) => Phase::Settled,
            Some(ResizeState::ControllerInProgress | ResizeState::ControllerInfeasible) => Phase::Controller,
            Some(ResizeState::NodePending | ResizeState::NodeInProgress) => Phase::Node,
            Some(ResizeState::NodeInfeasible) => Phase::NodeInfeasible,
        };
        Some(Self { requested: sizes.requested, capacity: sizes.capacity, phase })
    }

    /// Returns whether something is to be done after an earlier state of the claim. What the controller itself writes
    /// is nothing new, so that it does not end a pause.
    pub(crate) fn is_new_after(&self, earlier: Option<&Self>) -> bool {
        let Some(earlier) = earlier else { return true };
        let is_other_size = (self.requested, self.capacity) != (earlier.requested, earlier.capacity);
        let is_other_phase = match (earlier.phase, self.phase) {
            (Phase::Node, Phase::Controller) => true,
            (earlier, later) => later != earlier && matches!(later, Phase::Settled | Phase::NodeInfeasible),
        };
        is_other_size || is_other_phase
    }
}

impl ModificationRequest {
    fn from_claim(claim: &PersistentVolumeClaim) -> Option<Self> {
        let classes = ClaimClasses::from_claim(claim)?;
        let is_settled = classes.is_settled();
        let ClaimClasses { requested, current, status, .. } = classes;
        (!is_settled).then_some(Self { requested, current, has_status: status.is_some() })
    }

    /// Returns whether something is to be done after an earlier state of the claim, apart from what the controller
    /// itself writes.
    pub(crate) fn is_new_after(&self, earlier: Option<&Self>) -> bool {
        let Some(earlier) = earlier else { return true };
        (&self.requested, &self.current) != (&earlier.requested, &earlier.current)
            || earlier.has_status && !self.has_status
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "callers write the JSON in the call")]
    fn requests(changes: Value) -> Option<ClaimRequests> {
        let mut claim = json!({
            "metadata": {"name": "data", "namespace": "shop", "uid": "u"},
            "spec": {"volumeName": "pvc-1", "resources": {"requests": {"storage": "2Gi"}}},
            "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}},
        });
        json_patch::merge(&mut claim, &changes);
        ClaimRequests::from_claim(&serde_json::from_value(claim).unwrap())
    }

    fn state(name: &str) -> Value {
        json!({"status": {"allocatedResourceStatuses": {"storage": name}}})
    }

    #[test]
    fn claim_that_has_what_it_requests_is_not_kept() {
        assert_eq!(requests(json!({"status": {"capacity": {"storage": "2Gi"}}})), None);
        assert_eq!(requests(json!({"status": {"phase": "Lost"}})), None);
        assert_eq!(requests(json!({"spec": {"volumeName": null}})), None);
        let resized = requests(json!({})).unwrap();
        assert_eq!(resized.binding, Binding { uid: "u".to_owned(), volume: "pvc-1".to_owned() });
        assert!(resized.expansion.is_some() && resized.modification.is_none());
        let modified =
            json!({"spec": {"volumeAttributesClassName": "fast"}, "status": {"capacity": {"storage": "2Gi"}}});
        let modified = requests(modified).unwrap();
        assert!(modified.expansion.is_none() && modified.modification.is_some());
    }

    #[rstest]
    #[case::same(json!({}), json!({}), false)]
    #[case::more(json!({}), json!({"spec": {"resources": {"requests": {"storage": "3Gi"}}}}), true)]
    #[case::less(json!({}), json!({"spec": {"resources": {"requests": {"storage": "1500Mi"}}}}), true)]
    #[case::grown(json!({}), json!({"status": {"capacity": {"storage": "1500Mi"}}}), true)]
    #[case::begun(json!({}), state("ControllerResizeInProgress"), false)]
    #[case::refused(state("ControllerResizeInProgress"), state("ControllerResizeInfeasible"), false)]
    #[case::expanded(state("ControllerResizeInProgress"), state("NodeResizePending"), false)]
    #[case::kubelet_began(state("NodeResizePending"), state("NodeResizeInProgress"), false)]
    #[case::kubelet_failed(state("NodeResizeInProgress"), state("NodeResizeInfeasible"), true)]
    #[case::returned_to_the_controller(state("NodeResizePending"), state("ControllerResizeInProgress"), true)]
    #[case::kubelet_ended(state("NodeResizeInProgress"), json!({}), true)]
    fn expansion_is_new_unless_the_controller_wrote_it(
        #[case] earlier: Value,
        #[case] later: Value,
        #[case] expected: bool,
    ) {
        let (earlier, later) = (requests(earlier).unwrap().expansion, requests(later).unwrap().expansion.unwrap());
        assert_eq!(later.is_new_after(earlier.as_ref()), expected);
        assert!(later.is_new_after(None));
    }

    #[rstest]
    #[case::same("fast", json!({}), "fast", json!({}), false)]
    #[case::begun("fast", json!({}), "fast", json!({"status": "InProgress"}), false)]
    #[case::refused("fast", json!({"status": "InProgress"}), "fast", json!({"status": "Infeasible"}), false)]
    #[case::other("fast", json!({"status": "InProgress"}), "slow", json!({"status": "InProgress"}), true)]
    #[case::ended("fast", json!({"status": "InProgress"}), "fast", json!(null), true)]
    fn modification_is_new_unless_the_controller_wrote_it(
        #[case] earlier: &str,
        #[case] earlier_status: Value,
        #[case] later: &str,
        #[case] later_status: Value,
        #[case] expected: bool,
    ) {
        let read = |class: &str, status: Value| {
            let status = if status == json!({}) { Value::Null } else { status };
            let status = json!({"modifyVolumeStatus": status});
            requests(json!({"spec": {"volumeAttributesClassName": class}, "status": status})).unwrap().modification
        };
        let (earlier, later) = (read(earlier, earlier_status), read(later, later_status).unwrap());
        assert_eq!(later.is_new_after(earlier.as_ref()), expected);
    }
}
