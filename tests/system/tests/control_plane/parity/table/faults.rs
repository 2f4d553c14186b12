//! Faults of nodes, of LVM and of the API server.

use serde_json::{Value, json};

use crate::parity::kinds::Kind;
use crate::parity::scenario::{ALPHA, SELF, Scenario, Step, Target, Until, allowed, immediate_on, on, size};

pub(super) fn scenarios() -> Vec<Scenario> {
    let class = |name| Scenario::with_class(name, json!({}));
    let made = |scenario: Scenario| scenario.step(Step::Wait(Target::LogicalVolumeOf("a"), Until::Exists));
    let on_stopped = |name, node: &'static str| {
        made(class(name).node(node, 1, 0).step(Step::StopAgent(node)).claim("a", [on(node)]))
    };
    let refusing = |name| {
        class(name)
            .create(
                Kind::AdmissionPolicy,
                SELF,
                policy(&["CREATE"], "", "persistentvolumes", "object.spec.storageClassName == '$SELF'"),
            )
            .create(Kind::AdmissionBinding, SELF, binding())
            .step(Step::WaitRefused(
                Kind::Volume,
                json!({
                    "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": SELF},
                    "spec": {
                        "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "64Mi"}, "storageClassName": SELF,
                        "csi": {"driver": "topolvm.io", "volumeHandle": SELF},
                    },
                }),
            ))
    };
    // kube-controller-manager has removed its finalizer; the provisioner may have one that keeps the claim
    let released = || Until::Without("/metadata/finalizers", "kubernetes.io/pvc-protection".into());
    let has_size = || Until::Field("/status/currentSize", "64Mi".into());
    vec![
        // The volume is being made when its claim is deleted: nothing of it may be left
        on_stopped("claim-deleted-while-volume-is-made", "slow-4")
            .delete(Kind::Claim, "a")
            .wait(Kind::Claim, "a", released())
            .step(Step::StartAgent("slow-4"))
            .gone("a")
            .record(),
        on_stopped("claim-deleted-after-timeout", "slow-5")
            .failed("a", "DeadlineExceeded")
            .delete(Kind::Claim, "a")
            .wait(Kind::Claim, "a", released())
            .step(Step::StartAgent("slow-5"))
            .gone("a")
            .record(),
        on_stopped("agent-back-after-timeout", "slow-6")
            .failed("a", "DeadlineExceeded")
            .step(Step::StartAgent("slow-6"))
            .bound("a")
            .deleted("a"),
        on_stopped("class-deleted-while-volume-is-made", "slow-7")
            .delete(Kind::Class, SELF)
            .step(Step::StartAgent("slow-7"))
            .bound("a"),
        on_stopped("class-deleted-after-timeout", "slow-8")
            .failed("a", "DeadlineExceeded")
            .delete(Kind::Class, SELF)
            .step(Step::StartAgent("slow-8"))
            .step(Step::Wait(Target::LogicalVolumeOf("a"), has_size()))
            .class(json!({}))
            .bound("a"),
        on_stopped("node-changed-after-timeout", "slow-9")
            .failed("a", "DeadlineExceeded")
            .select("a", ALPHA)
            .step(Step::StartAgent("slow-9"))
            .bound("a"),
        on_stopped("node-deleted-after-timeout", "slow-12")
            .failed("a", "DeadlineExceeded")
            .delete(Kind::CsiNode, "slow-12")
            .delete(Kind::Node, "slow-12")
            .unselected("a")
            .failed("a", "ResourceExhausted")
            // After that Event the provisioner removes a selected node
            .barrier()
            .select("a", ALPHA)
            .bound("a"),
        class("lvcreate-fails")
            .node("broken-1", 1, 0)
            .step(Step::BreakLvm("broken-1", "lvcreate"))
            .claim("a", [on("broken-1")])
            .failed("a", "lvcreate")
            .unselected("a")
            .select("a", ALPHA)
            .bound("a"),
        class("claim-deleted-after-failure")
            .node("broken-2", 1, 0)
            .step(Step::BreakLvm("broken-2", "lvcreate"))
            .claim("a", [on("broken-2")])
            .failed("a", "")
            .delete(Kind::Claim, "a")
            .gone("a")
            .barrier()
            .record(),
        class("node-full")
            .node("filled-3", 0, 1)
            .claim("a", [on("filled-3")])
            .failed("a", "ResourceExhausted")
            .unselected("a"),
        class("node-too-small").node("small-1", 1, 0).claim("a", [on("small-1"), size("2Gi")]).unselected("a"),
        Scenario::with_class("immediate-node-full", immediate_on("filled-4"))
            .node("filled-4", 0, 1)
            .claim("a", [])
            .failed("a", "ResourceExhausted")
            .step(Step::FreeSpace("filled-4"))
            .bound("a"),
        Scenario::with_class("only-allowed-node-full", allowed("topology.topolvm.io/node", &["filled-5"]))
            .node("filled-5", 0, 1)
            .claim("a", [on("filled-5")])
            .unselected("a")
            .step(Step::FreeSpace("filled-5"))
            .select("a", "filled-5")
            .bound("a"),
        refusing("volume-refused")
            .claim("a", [on(ALPHA)])
            .step(Step::Wait(Target::LogicalVolumeOf("a"), has_size()))
            .barrier()
            .record()
            .delete(Kind::AdmissionBinding, SELF)
            .bound("a"),
        refusing("claim-deleted-while-volume-is-refused")
            .claim("a", [on(ALPHA)])
            .step(Step::Wait(Target::LogicalVolumeOf("a"), has_size()))
            .delete(Kind::Claim, "a")
            .wait(Kind::Claim, "a", released())
            .delete(Kind::AdmissionBinding, SELF)
            .gone("a")
            .record(),
        class("logical-volume-refused")
            .node("refused-1", 1, 0)
            .create(
                Kind::AdmissionPolicy,
                SELF,
                policy(&["CREATE"], "topolvm.io", "logicalvolumes", "object.spec.nodeName == 'refused-1'"),
            )
            .create(Kind::AdmissionBinding, SELF, binding())
            .step(Step::WaitRefused(
                Kind::LogicalVolume,
                json!({
                    "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume", "metadata": {"name": SELF},
                    "spec": {"name": SELF, "nodeName": "refused-1", "size": "64Mi"},
                }),
            ))
            .claim("a", [on("refused-1")])
            .failed("a", "refused by the scenario"),
    ]
}

/// Returns an admission policy that refuses these operations on objects of a resource that meet a condition.
pub(super) fn policy(operations: &[&str], group: &str, resource: &str, condition: &str) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": ""},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [group], "apiVersions": ["v1"], "operations": operations, "resources": [resource],
            }]},
            "matchConditions": [{"name": "scenario", "expression": condition}],
            "validations": [{"expression": "false", "message": "refused by the scenario"}],
        },
    })
}

pub(super) fn binding() -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": ""}, "spec": {"policyName": SELF, "validationActions": ["Deny"]},
    })
}
