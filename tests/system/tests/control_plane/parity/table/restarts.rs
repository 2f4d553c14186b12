//! Restarts of the provisioner, and the change to the other one.

use serde_json::json;

use crate::parity::kinds::Kind;
use crate::parity::scenario::{ALPHA, Scenario, Step, Target, Until, on};

pub(super) fn scenarios() -> Vec<Scenario> {
    let on_stopped = |name, node: &'static str| {
        Scenario::with_class(name, json!({}))
            .node(node, 1, 0)
            .step(Step::StopAgent(node))
            .claim("a", [on(node)])
            .step(Step::Wait(Target::LogicalVolumeOf("a"), Until::Exists))
            .wait(Kind::Claim, "a", Until::Event("Provisioning", ""))
            .step(Step::Kill)
    };
    vec![
        on_stopped("killed-while-volume-is-made", "slow-10")
            .step(Step::StartAgent("slow-10"))
            .step(Step::Restart)
            .bound("a")
            .deleted("a"),
        on_stopped("claim-deleted-while-provisioner-is-dead", "slow-11")
            .delete(Kind::Claim, "a")
            .wait(Kind::Claim, "a", Until::Without("/metadata/finalizers", "kubernetes.io/pvc-protection".into()))
            .step(Step::Restart)
            .step(Step::StartAgent("slow-11"))
            .barrier(),
        Scenario::with_class("volume-released-while-provisioner-is-dead", json!({}))
            .claim("a", [on(ALPHA)])
            .bound("a")
            .step(Step::Kill)
            .delete(Kind::Claim, "a")
            .wait_volume("a", Until::Field("/status/phase", "Released".into()))
            .step(Step::Restart)
            .gone("a"),
        Scenario::with_class("claims-created-while-provisioner-is-dead", json!({}))
            .step(Step::Kill)
            .claim("a", [on(ALPHA)])
            .claim("b", [on(ALPHA)])
            .step(Step::Restart)
            .wait(Kind::Claim, "a", Until::Bound)
            .bound("b"),
    ]
}

/// Returns the scenarios in which the other provisioner takes over, which run one after the other.
pub(super) fn hand_overs() -> Vec<Scenario> {
    ["hand-over", "hand-over-back"]
        .into_iter()
        .map(|name| {
            Scenario::with_class(name, json!({}))
                .claim("a", [on(ALPHA)])
                .bound("a")
                .step(Step::HandOver)
                .claim("b", [on(ALPHA)])
                .bound("b")
                .deleted("a")
                .deleted("b")
        })
        .collect()
}
