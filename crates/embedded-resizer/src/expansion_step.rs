//! Decides to which size the volume of a claim is expanded next. Pure.
//!
//! The size with which an expansion has begun is in the status of the claim, so that a user can reduce a request that
//! failed, and not one that may still succeed.

use crate::claim_sizes::{ClaimSizes, ResizeState};

/// The next step of an expansion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpansionStep {
    /// There is nothing to do, or the kubelet has to do it.
    Wait,
    /// The volume is expanded to so many bytes.
    Expand(u64),
}

/// Decides about a claim whose PersistentVolume has so many bytes. `has_failed` is true if the last call certainly had
/// no effect.
pub(crate) fn next_step(claim: ClaimSizes, volume_bytes: u64, has_failed: bool) -> ExpansionStep {
    use ResizeState::{
        ControllerInProgress, ControllerInfeasible, NodeInProgress, NodeInfeasible, NodePending, Unknown,
    };
    if !claim.requests_more() {
        return ExpansionStep::Wait;
    }
    let begun = claim.allocated.unwrap_or(claim.requested);
    let bytes = if volume_bytes < claim.requested {
        match claim.state {
            // The kubelet has yet to end the expansion to a smaller size
            Some(NodePending | NodeInProgress) if volume_bytes >= begun => return ExpansionStep::Wait,
            Some(NodePending | NodeInProgress | NodeInfeasible) => begun,
            Some(ControllerInProgress) if !has_failed => begun,
            Some(ControllerInProgress | ControllerInfeasible | Unknown) | None => claim.requested,
        }
    } else {
        match claim.state {
            Some(NodePending | NodeInProgress) => return ExpansionStep::Wait,
            // The volume is large enough, and the status does not show it. After a failure of the kubelet the driver
            // decides whether it may try again
            Some(ControllerInProgress | ControllerInfeasible | NodeInfeasible) => begun,
            None if claim.allocated.is_some() => begun,
            // Before Kubernetes 1.32 the API server stores neither state nor size
            Some(Unknown) | None if claim.is_filesystem_pending => return ExpansionStep::Wait,
            Some(Unknown) | None => claim.requested,
        }
    };
    ExpansionStep::Expand(bytes)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::ResizeState::*;
    use super::*;

    const EXPAND: fn(u64) -> ExpansionStep = ExpansionStep::Expand;
    const WAIT: ExpansionStep = ExpansionStep::Wait;

    fn sizes(requested: u64, allocated: Option<u64>, state: Option<ResizeState>) -> ClaimSizes {
        ClaimSizes { requested, capacity: 1, allocated, state, is_filesystem_pending: false }
    }

    #[rstest]
    #[case::nothing_requested(sizes(1, None, None), 1, WAIT)]
    #[case::less_than_the_capacity(sizes(0, Some(1), None), 1, WAIT)]
    #[case::new(sizes(5, None, None), 1, EXPAND(5))]
    #[case::after_an_earlier_expansion(sizes(5, Some(1), None), 1, EXPAND(5))]
    #[case::larger_while_one_runs(sizes(7, Some(5), Some(ControllerInProgress)), 1, EXPAND(5))]
    #[case::smaller_while_one_runs(sizes(3, Some(5), Some(ControllerInProgress)), 1, EXPAND(5))]
    #[case::smaller_after_infeasible(sizes(3, Some(5), Some(ControllerInfeasible)), 1, EXPAND(3))]
    #[case::larger_before_kubelet(sizes(7, Some(5), Some(NodePending)), 5, WAIT)]
    #[case::larger_during_kubelet(sizes(7, Some(5), Some(NodeInProgress)), 5, WAIT)]
    #[case::volume_not_recorded(sizes(7, Some(5), Some(NodePending)), 1, EXPAND(5))]
    #[case::kubelet_failed_before_more(sizes(7, Some(5), Some(NodeInfeasible)), 5, EXPAND(5))]
    #[case::later_state(sizes(7, Some(5), Some(Unknown)), 5, EXPAND(7))]
    fn small_volume_finishes_its_expansion_first(
        #[case] claim: ClaimSizes,
        #[case] volume: u64,
        #[case] expected: ExpansionStep,
    ) {
        assert_eq!(next_step(claim, volume, false), expected);
    }

    #[rstest]
    #[case::before_kubelet(sizes(5, Some(5), Some(NodePending)), WAIT)]
    #[case::during_kubelet(sizes(5, Some(5), Some(NodeInProgress)), WAIT)]
    #[case::status_not_written(sizes(5, Some(5), Some(ControllerInProgress)), EXPAND(5))]
    #[case::smaller_again(sizes(3, Some(5), Some(ControllerInfeasible)), EXPAND(5))]
    #[case::kubelet_failed(sizes(5, Some(5), Some(NodeInfeasible)), EXPAND(5))]
    #[case::no_state(sizes(3, Some(5), None), EXPAND(5))]
    #[case::nothing_stored(sizes(5, None, None), EXPAND(5))]
    #[case::pending_without_a_state(ClaimSizes { is_filesystem_pending: true, ..sizes(5, None, None) }, WAIT)]
    fn large_volume_is_recorded_or_left_to_the_kubelet(#[case] claim: ClaimSizes, #[case] expected: ExpansionStep) {
        assert_eq!(next_step(claim, 5, false), expected);
    }

    #[test]
    fn failed_size_gives_way_to_the_request() {
        let claim = sizes(3, Some(5), Some(ControllerInProgress));
        assert_eq!(next_step(claim, 1, true), EXPAND(3));
    }
}
