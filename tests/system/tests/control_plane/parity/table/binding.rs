//! Binding modes and selected nodes.

use serde_json::{Value, json};
use topolvm_api::SELECTED_NODE;

use crate::parity::kinds::Kind;
use crate::parity::merge::merge;
use crate::parity::scenario::{ALPHA, BETA, DRIVER, Scenario, Step, Target, Until, allowed, immediate_on, on};

pub(super) fn scenarios() -> Vec<Scenario> {
    let class = |name| Scenario::with_class(name, json!({}));
    let immediate = |name| Scenario::with_class(name, immediate_on(ALPHA));
    let topology_key = "topology.topolvm.io/node";
    vec![
        class("selected-node").claim("a", [on(ALPHA)]).bound("a").deleted("a"),
        class("no-node-selected").claim("a", []).barrier().record(),
        class("node-selected-later").claim("a", []).barrier().select("a", BETA).bound("a"),
        class("selected-node-is-empty").claim("a", [on("")]).barrier().record(),
        immediate("immediate").claim("a", []).bound("a").deleted("a"),
        immediate("immediate-with-selected-node").claim("a", [on(ALPHA)]).bound("a"),
        Scenario::with_class(
            "immediate-on-any-node",
            merge(allowed(topology_key, &[ALPHA, BETA]), json!({"volumeBindingMode": "Immediate"})),
        )
        .on_any_node()
        .claim("a", [])
        .bound("a"),
        Scenario::with_class("immediate-selected-node-of-two", json!({"volumeBindingMode": "Immediate"}))
            .claim("a", [on(BETA)])
            .bound("a"),
        Scenario::with_class("immediate-selected-node-missing", immediate_on(ALPHA))
            .claim("a", [on("missing")])
            .decided("a"),
        class("node-missing").claim("a", [on("missing")]).failed("a", "").unselected("a"),
        class("node-missing-then-another").claim("a", [on("missing")]).unselected("a").select("a", ALPHA).bound("a"),
        class("node-without-csinode")
            .create(Kind::Node, "$SELF", node(&json!({topology_key: "node-without-csinode"})))
            .claim("a", [on("$SELF")])
            .unselected("a"),
        class("csinode-without-driver")
            .create(Kind::Node, "$SELF", node(&json!({topology_key: "csinode-without-driver"})))
            .create(Kind::CsiNode, "$SELF", csi_node(&json!([])))
            .claim("a", [on("$SELF")])
            .failed("a", ""),
        class("driver-registers-later")
            .create(Kind::Node, "$SELF", node(&json!({topology_key: "registers"})))
            .create(Kind::CsiNode, "$SELF", csi_node(&json!([])))
            .claim("a", [on("$SELF")])
            .failed("a", "")
            .select("a", ALPHA)
            .bound("a"),
        class("node-without-label")
            .create(Kind::Node, "$SELF", node(&json!({})))
            .create(
                Kind::CsiNode,
                "$SELF",
                csi_node(&json!([
                    {"name": DRIVER, "nodeID": "$SELF", "topologyKeys": [topology_key]},
                ])),
            )
            .claim("a", [on("$SELF")])
            .failed("a", ""),
        class("another-node-selected-after-failure")
            .node("filled-1", 0, 1)
            .claim("a", [on("filled-1")])
            .failed("a", "")
            .unselected("a")
            .select("a", BETA)
            .bound("a"),
        class("pod-selects-node")
            .claim("a", [])
            .step(service_account())
            .create(Kind::Pod, "a", pod("a", ALPHA))
            .bound("a"),
        class("pod-moves-from-full-node")
            .node("filled-2", 0, 1)
            .claim("a", [on("filled-2")])
            .unselected("a")
            .step(service_account())
            .create(Kind::Pod, "a", pod("a", BETA))
            .bound("a"),
        class("node-annotation-removed-meanwhile")
            .node("slow-1", 1, 0)
            .step(Step::StopAgent("slow-1"))
            .claim("a", [on("slow-1")])
            .step(Step::Wait(Target::LogicalVolumeOf("a"), Until::Exists))
            .patch(Kind::Claim, "a", json!({"metadata": {"annotations": {SELECTED_NODE: null}}}))
            .step(Step::StartAgent("slow-1"))
            .bound("a"),
        class("node-annotation-removed-after-timeout")
            .node("slow-14", 1, 0)
            .step(Step::StopAgent("slow-14"))
            .claim("a", [on("slow-14")])
            .failed("a", "DeadlineExceeded")
            .patch(Kind::Claim, "a", json!({"metadata": {"annotations": {SELECTED_NODE: null}}}))
            .step(Step::StartAgent("slow-14"))
            .step(Step::Wait(Target::LogicalVolumeOf("a"), Until::Field("/status/currentSize", "64Mi".into())))
            .barrier()
            .select("a", ALPHA)
            .bound("a"),
        class("node-annotation-changed-meanwhile")
            .node("slow-2", 1, 0)
            .step(Step::StopAgent("slow-2"))
            .claim("a", [on("slow-2")])
            .step(Step::Wait(Target::LogicalVolumeOf("a"), Until::Exists))
            .select("a", ALPHA)
            .step(Step::StartAgent("slow-2"))
            .bound("a"),
        class("two-claims-of-a-pod")
            .claim("a", [on(ALPHA)])
            .claim("b", [on(ALPHA)])
            .wait(Kind::Claim, "a", Until::Bound)
            .bound("b"),
        class("claim-recreated").claim("a", [on(ALPHA)]).bound("a").deleted("a").claim("a", [on(BETA)]).bound("a"),
        class("claim-deleted-before-selection").claim("a", []).barrier().deleted("a").record(),
    ]
}

fn node(labels: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "", "labels": labels}})
}

fn csi_node(drivers: &Value) -> Value {
    let (version, spec) = ("storage.k8s.io/v1", json!({"drivers": drivers}));
    json!({"apiVersion": version, "kind": "CSINode", "metadata": {"name": ""}, "spec": spec})
}

/// Returns the step after which pods can be created.
pub(super) fn service_account() -> Step {
    Step::Wait(Target::Named(Kind::ServiceAccount, "default".to_owned()), Until::Exists)
}

/// Returns a pod with a claim for kube-scheduler, on a node; no kubelet ever runs it.
pub(super) fn pod(claim: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": claim},
        "spec": {
            "containers": [{
                "name": "main", "image": "none", "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
            "nodeSelector": {"kubernetes.io/hostname": node},
            // No kubelet reports that the nodes are ready
            "tolerations": [{"operator": "Exists"}],
        },
    })
}
