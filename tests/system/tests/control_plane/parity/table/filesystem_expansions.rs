//! Expansions of volumes with a filesystem, which the kubelet grows. The scenarios write the status of its part.

use serde_json::{Value, json};

use super::device_expansions::{capacity, expandable};
use crate::parity::kinds::Kind;
use crate::parity::scenario::{ALPHA, Scenario, Until, on};

const PENDING: &str = "NodeResizePending";

/// Begins a scenario with a bound claim `a` of a filesystem on a node.
pub(super) fn filesystem_on(scenario: Scenario, node: &str) -> Scenario {
    scenario.claim("a", [on(node)]).wait(Kind::Claim, "a", Until::Bound)
}

/// Returns a patch of the status of a claim with this state of the expansion.
fn state(name: &Value) -> Value {
    json!({"status": {"allocatedResourceStatuses": {"storage": name}}})
}

pub(super) fn scenarios() -> Vec<Scenario> {
    let filesystem = |name| filesystem_on(expandable(name, json!({})), ALPHA);
    let pending = |name| filesystem(name).request("a", "128Mi").node_pending("a", "128Mi");
    let set = |scenario: Scenario, name: &str| scenario.patch_status("a", state(&name.into()));
    let again = |scenario: Scenario| scenario.in_state("a", "128Mi", PENDING).record();
    vec![
        pending("filesystem-grows").node_finished("a", "128Mi").barrier().record(),
        pending("filesystem-grows-twice")
            .node_finished("a", "128Mi")
            .request("a", "192Mi")
            .node_pending("a", "192Mi")
            .node_finished("a", "192Mi"),
        pending("more-requested-before-kubelet")
            .request("a", "192Mi")
            .barrier()
            .record()
            .node_finished("a", "128Mi")
            .node_pending("a", "192Mi"),
        pending("less-requested-before-kubelet")
            .request("a", "96Mi")
            .barrier()
            .record()
            .node_finished("a", "128Mi")
            .barrier()
            .record(),
        set(pending("more-requested-during-kubelet"), "NodeResizeInProgress")
            .request("a", "192Mi")
            .barrier()
            .record()
            .node_finished("a", "128Mi")
            .node_pending("a", "192Mi"),
        set(pending("less-requested-during-kubelet"), "NodeResizeInProgress").request("a", "96Mi").barrier().record(),
        again(set(pending("kubelet-fails"), "NodeResizeInfeasible")).node_finished("a", "128Mi").barrier().record(),
        again(set(pending("kubelet-fails-and-less-is-requested").request("a", "96Mi"), "NodeResizeInfeasible")),
        again(set(pending("kubelet-fails-and-more-is-requested").request("a", "192Mi"), "NodeResizeInfeasible"))
            .node_finished("a", "128Mi")
            .node_pending("a", "192Mi"),
        again(set(pending("kubelet-fails-twice"), "NodeResizeInfeasible"))
            .patch_status("a", state(&"NodeResizeInfeasible".into()))
            .in_state("a", "128Mi", PENDING)
            .record(),
        // What a resizer leaves that ends between its writes
        again(set(pending("state-is-late"), "ControllerResizeInProgress")),
        again(pending("state-is-lost").patch_status("a", state(&Value::Null))),
        pending("volume-is-late")
            .patch_volume("a", capacity("64Mi"))
            .barrier()
            .request("a", "192Mi")
            .wait_volume("a", Until::Field("/spec/capacity/storage", "128Mi".into()))
            .in_state("a", "128Mi", PENDING)
            .record()
            .node_finished("a", "128Mi")
            .node_pending("a", "192Mi"),
        expandable("annotation-for-the-kubelet-is-removed", json!({}))
            .claim(
                "a",
                [
                    on(ALPHA),
                    json!({"metadata": {"annotations": {
                        "volume.kubernetes.io/node-expansion-not-required": "true",
                    }}}),
                ],
            )
            .wait(Kind::Claim, "a", Until::Bound)
            .request("a", "128Mi")
            .node_pending("a", "128Mi"),
    ]
}
