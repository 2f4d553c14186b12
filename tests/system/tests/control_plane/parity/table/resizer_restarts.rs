//! Restarts of the resizer, and the change to the other one.

use serde_json::json;

use super::device_expansions::device;
use super::expansion_faults::{on_broken, on_stopped};
use super::filesystem_expansions::filesystem_on;
use super::modifications::with_classes;
use crate::parity::kinds::Kind;
use crate::parity::scenario::{ALPHA, DRIVER, SELF, Scenario, Step, Until};

pub(super) fn scenarios() -> Vec<Scenario> {
    vec![
        on_stopped("killed-while-device-grows", "slow-11", "128Mi")
            .step(Step::Kill)
            .step(Step::StartAgent("slow-11"))
            .step(Step::Restart)
            .expanded("a", "128Mi"),
        // The outcome of the first expansion is unknown to the next process
        on_stopped("less-requested-while-resizer-is-dead", "slow-12", "256Mi")
            .step(Step::Kill)
            .request("a", "128Mi")
            .step(Step::StartAgent("slow-12"))
            .step(Step::Restart)
            .expanded("a", "256Mi"),
        on_stopped("claim-deleted-while-resizer-is-dead", "slow-13", "128Mi")
            .step(Step::Kill)
            .delete(Kind::Claim, "a")
            .wait(Kind::Claim, "a", Until::Gone)
            .step(Step::StartAgent("slow-13"))
            .step(Step::Restart)
            .gone("a"),
        // The next process tries the failed size again before it turns to a smaller one
        on_broken("less-requested-after-failure-while-resizer-is-dead", "broken-11")
            .step(Step::Kill)
            .request("a", "128Mi")
            .step(Step::Restart)
            .in_state("a", "128Mi", "ControllerResizeInProgress")
            // Then the agent has no request for the larger size any more
            .wait(Kind::Claim, "a", Until::Condition("ControllerResizeError"))
            .step(Step::RepairLvm("broken-11"))
            .expanded("a", "128Mi"),
        device("less-requested-after-too-much-while-resizer-is-dead")
            .request("a", "1Ti")
            .infeasible("a", "1Ti")
            .step(Step::Kill)
            .request("a", "128Mi")
            .step(Step::Restart)
            .expanded("a", "128Mi"),
        device("requested-while-resizer-is-dead")
            .step(Step::Kill)
            .request("a", "128Mi")
            .step(Step::Restart)
            .expanded("a", "128Mi"),
        filesystem_on(super::device_expansions::expandable("restart-before-kubelet", json!({})), ALPHA)
            .request("a", "128Mi")
            .node_pending("a", "128Mi")
            .step(Step::Kill)
            .step(Step::Restart)
            .barrier()
            .record()
            .node_finished("a", "128Mi"),
        with_classes(device("class-requested-while-resizer-is-dead"))
            .step(Step::Kill)
            .request_class("a", "$SELF-fast")
            .step(Step::Restart)
            .modified("a", "$SELF-fast"),
        device("class-created-while-resizer-is-dead")
            .request_class("a", SELF)
            .modification("a", "Pending")
            .step(Step::Kill)
            .attributes(SELF, DRIVER, &json!({"topolvm.io/read-bytes-per-second": "10Mi"}))
            .step(Step::Restart)
            .modified("a", SELF),
    ]
}

/// Returns the scenarios in which the other resizer takes over, which run one after the other.
pub(super) fn hand_overs() -> Vec<Scenario> {
    let growing = |name, node: &'static str| {
        on_stopped(name, node, "128Mi")
            .step(Step::HandOver)
            .step(Step::StartAgent(node))
            .expanded("a", "128Mi")
            .request("a", "192Mi")
            .wait(Kind::Claim, "a", Until::Field("/status/capacity/storage", "192Mi".into()))
            .deleted("a")
    };
    let failing = |name, node: &'static str| {
        on_broken(name, node)
            .step(Step::HandOver)
            .request("a", "128Mi")
            .in_state("a", "128Mi", "ControllerResizeInProgress")
            // Then the agent has no request for the larger size any more
            .wait(Kind::Claim, "a", Until::Condition("ControllerResizeError"))
            .step(Step::RepairLvm(node))
            .expanded("a", "128Mi")
    };
    let refused = |name| {
        with_classes(device(name))
            .request("a", "1Ti")
            .infeasible("a", "1Ti")
            .request_class("a", "$SELF-wrong")
            .modification("a", "Infeasible")
            .step(Step::HandOver)
            .request("a", "128Mi")
            .expanded("a", "128Mi")
            .request_class("a", "$SELF-fast")
            .modified("a", "$SELF-fast")
    };
    // Each starts with the one that took over in the scenario before
    vec![
        growing("resizer-hand-over", "slow-21"),
        growing("resizer-hand-over-back", "slow-22"),
        failing("hand-over-after-failure", "broken-21"),
        failing("hand-over-back-after-failure", "broken-22"),
        refused("hand-over-after-refusal"),
        refused("hand-over-back-after-refusal"),
    ]
}
