//! Expansions that fail: no free space, faults of LVM, of agents and of the API server, and Secrets.

use serde_json::{Value, json};

use super::device_expansions::{device, expandable, with_device_on};
use super::dynamic_contents::{readable_secret, secret, secret_object};
use super::faults::{binding, policy};
use super::filesystem_expansions::filesystem_on;
use crate::parity::kinds::Kind;
use crate::parity::scenario::{ALPHA, SELF, Scenario, Step, Target, Until, parameters};

const FAILED: &str = "VolumeResizeFailed";
const ERROR: &str = "ControllerResizeError";
const LVEXTEND: &str = "lvextend";

/// Begins a scenario with a bound claim `a` of a device on a node with this many free GiB, and as many that are used.
pub(super) fn device_on(name: &'static str, node: &'static str, free: u64, filled: u64) -> Scenario {
    with_device_on(expandable(name, json!({})).node(node, free, filled), node, "a")
}

/// Begins a scenario in which the agent of a node does not expand the volume of the claim `a` to this size.
pub(super) fn on_stopped(name: &'static str, node: &'static str, bytes: &'static str) -> Scenario {
    device_on(name, node, 1, 0)
        .step(Step::StopAgent(node))
        .request("a", bytes)
        .step(Step::Wait(Target::LogicalVolumeOf("a"), Until::Field("/spec/size", bytes.into())))
}

/// Begins a scenario in which LVM refuses to expand the volume of the claim `a` to 256 MiB.
pub(super) fn on_broken(name: &'static str, node: &'static str) -> Scenario {
    failed(device_on(name, node, 1, 0).step(Step::BreakLvm(node, LVEXTEND)).request("a", "256Mi"), LVEXTEND).wait(
        Kind::Claim,
        "a",
        Until::Condition(ERROR),
    )
}

/// Waits until an expansion of the claim `a` has failed with this text.
fn failed(scenario: Scenario, text: &'static str) -> Scenario {
    scenario.wait(Kind::Claim, "a", Until::Event(FAILED, text))
}

/// Begins a scenario with a claim `a` whose volume needs a Secret to grow.
fn with_secret(name: &'static str, secret_name: &str) -> Scenario {
    with_device_on(expandable(name, secret("controller-expand", secret_name)), ALPHA, "a")
}

/// Adds an admission policy that refuses changes of objects that meet a condition, and waits until it is in force for
/// this one.
pub(super) fn refusing(scenario: Scenario, group: &str, kind: Kind, condition: &str, object: Value) -> Scenario {
    let resource = if kind == Kind::Volume { "persistentvolumes" } else { "logicalvolumes" };
    scenario
        .create(Kind::AdmissionPolicy, SELF, policy(&["CREATE", "UPDATE"], group, resource, condition))
        .create(Kind::AdmissionBinding, SELF, binding())
        .step(Step::WaitRefused(kind, object))
}

/// Adds an admission policy that refuses changes of the LogicalVolumes of a node.
pub(super) fn refusing_logical_volumes(scenario: Scenario, node: &str) -> Scenario {
    let object = json!({
        "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume", "metadata": {"name": SELF},
        "spec": {"name": SELF, "nodeName": node, "size": "64Mi"},
    });
    refusing(scenario, "topolvm.io", Kind::LogicalVolume, &format!("object.spec.nodeName == '{node}'"), object)
}

fn refusing_volumes(scenario: Scenario) -> Scenario {
    let object = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": SELF},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "128Mi"}, "storageClassName": SELF,
            "csi": {"driver": "topolvm.io", "volumeHandle": SELF},
        },
    });
    let condition = "object.spec.storageClassName == '$SELF' && object.spec.capacity.storage == '128Mi'";
    refusing(scenario, "", Kind::Volume, condition, object)
}

pub(super) fn scenarios() -> Vec<Scenario> {
    let too_large = |name, node| device_on(name, node, 1, 0).request("a", "2Gi").infeasible("a", "2Gi");
    let timed_out = |name, node, bytes| failed(on_stopped(name, node, bytes), "DeadlineExceeded");
    vec![
        // No free space
        too_large("too-large", "grow-1"),
        too_large("less-requested-after-too-much", "grow-2").request("a", "128Mi").expanded("a", "128Mi"),
        too_large("more-requested-after-too-much", "grow-3").request("a", "3Gi").infeasible("a", "3Gi"),
        too_large("same-size-requested-again", "grow-4")
            .request("a", "1920Mi")
            .infeasible("a", "1920Mi")
            .request("a", "2Gi")
            .infeasible("a", "2Gi"),
        device_on("space-is-freed", "grow-5", 1, 1)
            .request("a", "1536Mi")
            .infeasible("a", "1536Mi")
            .step(Step::FreeSpace("grow-5"))
            .expanded("a", "1536Mi"),
        device("near-the-largest").request("a", "7Ei").infeasible("a", "7Ei"),
        filesystem_on(expandable("filesystem-too-large", json!({})).node("grow-6", 1, 0), "grow-6")
            .request("a", "2Gi")
            .infeasible("a", "2Gi")
            .request("a", "128Mi")
            .node_pending("a", "128Mi"),
        with_device_on(
            expandable("thin-device-too-large", parameters(&json!({"topolvm.io/device-class": "thin"})))
                .node("grow-7", 1, 0),
            "grow-7",
            "a",
        )
        .request("a", "400Gi")
        .infeasible("a", "400Gi"),
        // The node has an error
        on_broken("lvextend-fails", "broken-1").record().step(Step::RepairLvm("broken-1")).expanded("a", "256Mi"),
        on_broken("less-requested-after-failure", "broken-2")
            .request("a", "128Mi")
            .in_state("a", "128Mi", "ControllerResizeInProgress")
            .wait(Kind::Claim, "a", Until::Condition(ERROR))
            .record()
            .step(Step::RepairLvm("broken-2"))
            .expanded("a", "128Mi"),
        on_broken("more-requested-after-failure", "broken-3")
            .request("a", "512Mi")
            .in_state("a", "512Mi", "ControllerResizeInProgress")
            .wait(Kind::Claim, "a", Until::Condition(ERROR))
            .record()
            .step(Step::RepairLvm("broken-3"))
            .expanded("a", "512Mi"),
        failed(
            filesystem_on(expandable("filesystem-fails", json!({})).node("broken-4", 1, 0), "broken-4")
                .step(Step::BreakLvm("broken-4", LVEXTEND))
                .request("a", "128Mi"),
            LVEXTEND,
        )
        .wait(Kind::Claim, "a", Until::Condition(ERROR))
        .step(Step::RepairLvm("broken-4"))
        .node_pending("a", "128Mi")
        .node_finished("a", "128Mi"),
        on_broken("claim-deleted-after-failure", "broken-5")
            .delete(Kind::Claim, "a")
            .wait(Kind::Claim, "a", Until::Gone)
            .step(Step::RepairLvm("broken-5"))
            .gone("a"),
        // The node does not answer in time
        on_stopped("agent-back-in-time", "slow-1", "128Mi").step(Step::StartAgent("slow-1")).expanded("a", "128Mi"),
        timed_out("agent-back-after-timeout", "slow-2", "128Mi")
            .record()
            .step(Step::StartAgent("slow-2"))
            .expanded("a", "128Mi"),
        timed_out("less-requested-after-timeout", "slow-3", "256Mi")
            .request("a", "128Mi")
            .barrier()
            .record()
            .step(Step::StartAgent("slow-3"))
            .expanded("a", "256Mi"),
        timed_out("more-requested-after-timeout", "slow-4", "128Mi")
            .request("a", "256Mi")
            .barrier()
            .record()
            .step(Step::StartAgent("slow-4"))
            .expanded("a", "256Mi"),
        on_stopped("less-requested-while-device-grows", "slow-5", "256Mi")
            .request("a", "128Mi")
            .step(Step::StartAgent("slow-5"))
            .expanded("a", "256Mi"),
        on_stopped("more-requested-while-device-grows", "slow-6", "128Mi")
            .request("a", "256Mi")
            .step(Step::StartAgent("slow-6"))
            .expanded("a", "256Mi"),
        on_stopped("class-deleted-while-device-grows", "slow-7", "128Mi")
            .delete(Kind::Class, SELF)
            .step(Step::StartAgent("slow-7"))
            .expanded("a", "128Mi"),
        on_stopped("claim-deleted-while-device-grows", "slow-8", "128Mi")
            .delete(Kind::Claim, "a")
            .wait(Kind::Claim, "a", Until::Gone)
            .step(Step::StartAgent("slow-8"))
            .gone("a"),
        // The API server refuses
        failed(
            refusing_logical_volumes(device_on("logical-volume-refused", "refused-1", 1, 0), "refused-1")
                .request("a", "128Mi"),
            "refused by the scenario",
        )
        .record()
        .delete(Kind::AdmissionBinding, SELF)
        .expanded("a", "128Mi"),
        refusing_volumes(device("volume-refused"))
            .request("a", "128Mi")
            .step(Step::Wait(Target::LogicalVolumeOf("a"), Until::Field("/status/currentSize", "128Mi".into())))
            .barrier()
            .record()
            .delete(Kind::AdmissionBinding, SELF)
            .expanded("a", "128Mi"),
        // Secrets
        failed(with_secret("secret-missing", "missing").request("a", "128Mi"), "missing").record(),
        readable_secret(failed(with_secret("secret-created-later", "key").request("a", "128Mi"), ""), "key")
            .expanded("a", "128Mi"),
        failed(
            with_secret("secret-forbidden", "key").create(Kind::Secret, "key", secret_object()).request("a", "128Mi"),
            "",
        )
        .record(),
        readable_secret(with_secret("secret-readable", "key"), "key").request("a", "128Mi").expanded("a", "128Mi"),
    ]
}
