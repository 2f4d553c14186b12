//! Sizes of a claim, and the state of its expansion, as its status has them. Pure.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use topolvm_api::parse_bytes;

use crate::conditions::has_condition;

/// The resource of a claim.
pub(crate) const STORAGE: &str = "storage";

/// State of an expansion in `status.allocatedResourceStatuses`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResizeState {
    ControllerInProgress,
    ControllerInfeasible,
    NodePending,
    NodeInProgress,
    NodeInfeasible,
    /// A state of a later Kubernetes.
    Unknown,
}

/// The sizes of a claim in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClaimSizes {
    pub(crate) requested: u64,
    pub(crate) capacity: u64,
    /// The size that an expansion has begun with, or has reached.
    pub(crate) allocated: Option<u64>,
    pub(crate) state: Option<ResizeState>,
    /// True while the claim waits for the kubelet.
    pub(crate) is_filesystem_pending: bool,
}

impl ResizeState {
    fn parse(text: &str) -> Self {
        match text {
            "ControllerResizeInProgress" => Self::ControllerInProgress,
            "ControllerResizeInfeasible" => Self::ControllerInfeasible,
            "NodeResizePending" => Self::NodePending,
            "NodeResizeInProgress" => Self::NodeInProgress,
            "NodeResizeInfeasible" => Self::NodeInfeasible,
            _ => Self::Unknown,
        }
    }

    /// Returns the name in the API.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::ControllerInProgress => "ControllerResizeInProgress",
            Self::ControllerInfeasible => "ControllerResizeInfeasible",
            Self::NodePending => "NodeResizePending",
            Self::NodeInProgress => "NodeResizeInProgress",
            Self::NodeInfeasible => "NodeResizeInfeasible",
            Self::Unknown => "",
        }
    }
}

impl ClaimSizes {
    /// Reads the sizes of a bound claim; `None` of another, or where a size is missing or invalid.
    pub(crate) fn from_claim(claim: &PersistentVolumeClaim) -> Option<Self> {
        let (spec, status) = (claim.spec.as_ref()?, claim.status.as_ref()?);
        if status.phase.as_deref() != Some("Bound") {
            return None;
        }
        let bytes = |sizes: Option<&Quantity>| parse_bytes(sizes?).ok();
        let state = status.allocated_resource_statuses.as_ref().and_then(|states| states.get(STORAGE));
        Some(Self {
            requested: bytes(spec.resources.as_ref()?.requests.as_ref()?.get(STORAGE))?,
            capacity: bytes(status.capacity.as_ref()?.get(STORAGE))?,
            allocated: bytes(status.allocated_resources.as_ref().and_then(|sizes| sizes.get(STORAGE))),
            state: state.map(|text| ResizeState::parse(text)),
            is_filesystem_pending: has_condition(claim, "FileSystemResizePending"),
        })
    }

    /// Returns whether the claim requests more than it has.
    pub(crate) const fn requests_more(&self) -> bool {
        self.requested > self.capacity
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn sizes(status: &Value) -> Option<ClaimSizes> {
        let spec = json!({"volumeName": "pvc-1", "resources": {"requests": {"storage": "2Ki"}}});
        ClaimSizes::from_claim(&serde_json::from_value(json!({"spec": spec, "status": status})).unwrap())
    }

    #[test]
    fn sizes_of_a_bound_claim_are_read() {
        let status = json!({
            "phase": "Bound", "capacity": {"storage": "1Ki"}, "allocatedResources": {"storage": "3Ki"},
            "allocatedResourceStatuses": {"storage": "NodeResizePending"},
            "conditions": [{"type": "FileSystemResizePending", "status": "True"}],
        });
        let expected = ClaimSizes {
            requested: 2048,
            capacity: 1024,
            allocated: Some(3072),
            state: Some(ResizeState::NodePending),
            is_filesystem_pending: true,
        };
        assert_eq!(sizes(&status), Some(expected));
        let plain = json!({"phase": "Bound", "capacity": {"storage": "1Ki"}});
        let expected = ClaimSizes { allocated: None, state: None, is_filesystem_pending: false, ..expected };
        assert_eq!(sizes(&plain), Some(expected));
    }

    #[test]
    fn sizes_need_a_bound_claim_with_a_capacity() {
        for status in [json!({}), json!({"phase": "Bound"}), json!({"phase": "Lost", "capacity": {"storage": "1Ki"}})] {
            assert_eq!(sizes(&status), None, "{status}");
        }
    }

    #[test]
    fn resize_state_has_the_name_of_the_api() {
        for name in ["ControllerResizeInProgress", "ControllerResizeInfeasible", "NodeResizePending"] {
            assert_eq!(ResizeState::parse(name).name(), name);
        }
        assert_eq!(ResizeState::parse("Shrinking"), ResizeState::Unknown);
    }
}
