//! Restarts of the snapshotter, and the change to the other one.

use serde_json::{Value, json};

use super::dynamic_contents::{on_stopped, with_source};
use crate::parity::kinds::Kind;
use crate::parity::scenario::{BEING_CREATED_POINTER, Scenario, Step, Until};

/// Begins a scenario in which a call is interrupted.
fn interrupted(name: &'static str, node: &'static str) -> Scenario {
    on_stopped(name, node).wait_content("s", Until::Field(BEING_CREATED_POINTER, "yes".into()))
}

pub(super) fn scenarios() -> Vec<Scenario> {
    let taken = |name| with_source(name).snapshot_class(json!({})).snapshot("s", "source").ready("s");
    vec![
        interrupted("killed-while-snapshot-is-created", "slow-11")
            .step(Step::Kill)
            .step(Step::StartAgent("slow-11"))
            .step(Step::Restart)
            .ready("s")
            .delete(Kind::Snapshot, "s")
            .snapshot_gone("s"),
        interrupted("deleted-while-snapshotter-is-dead", "slow-12")
            .step(Step::Kill)
            .delete(Kind::Snapshot, "s")
            .step(Step::StartAgent("slow-12"))
            .step(Step::Restart)
            .snapshot_gone("s"),
        taken("ready-snapshot-deleted-while-snapshotter-is-dead")
            .step(Step::Kill)
            .delete(Kind::Snapshot, "s")
            .step(Step::Restart)
            .snapshot_gone("s"),
        with_source("created-while-snapshotter-is-dead")
            .snapshot_class(json!({}))
            .step(Step::Kill)
            .snapshot("s", "source")
            .snapshot("t", "source")
            .step(Step::Restart)
            .wait(Kind::Snapshot, "s", Until::Field("/status/readyToUse", true.into()))
            .wait_content("s", Until::Field(BEING_CREATED_POINTER, Value::Null))
            .ready("t"),
    ]
}

/// Returns the scenarios in which the other snapshotter takes over, which run one after the other.
pub(super) fn hand_overs() -> Vec<Scenario> {
    let changed = |name, node: &'static str| {
        interrupted(name, node)
            .step(Step::HandOver)
            .step(Step::StartAgent(node))
            .ready("s")
            .snapshot("t", "source")
            .ready("t")
            .delete(Kind::Snapshot, "s")
            .snapshot_gone("s")
            .delete(Kind::Snapshot, "t")
            .snapshot_gone("t")
    };
    vec![changed("snapshotter-hand-over", "slow-21"), changed("snapshotter-hand-over-back", "slow-22")]
}
