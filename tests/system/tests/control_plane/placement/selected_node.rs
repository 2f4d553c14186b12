//! Nodes that an administrator selects: by the annotation of a claim, and by `spec.nodeName` of a pod.

use anyhow::Result;
use serde_json::json;
use topolvm_api::SELECTED_NODE;

use super::setup::{FAR, NEAR, Setup, WAITING, device_claim};

pub(super) fn select_by_hand(setup: &Setup<'_>) -> Result<()> {
    let selected = |name: &str, gib: u64, node: &str| {
        let mut claim = device_claim(name, (WAITING, gib));
        claim["metadata"]["annotations"] = json!({SELECTED_NODE: node});
        claim
    };
    let mut pinned = setup.pod("pinned", &[("pinned", (WAITING, 10))]);
    pinned["spec"]["nodeName"] = json!(NEAR);
    setup.apply(&[selected("selected", 10, NEAR), device_claim("pinned", (WAITING, 10)), pinned])?;
    setup.wait_volume("selected", NEAR)?;
    // Only now: its reservation leaves no space for others, and no scheduler would select another node for a claim
    // without a pod
    setup.apply(&[selected("too-large", 150, NEAR)])?;
    let claim = "PersistentVolumeClaim";
    setup.fixture.wait_event(claim, "too-large", "Warning ProvisioningFailed", "ResourceExhausted")?;
    setup.fixture.wait_event(claim, "too-large", "Warning ProvisioningFailed", NEAR)?;
    // No node is selected any more, so the scheduler can select one
    setup.apply(&[setup.pod("too-large", &[("too-large", (WAITING, 150))])])?;
    setup.wait_scheduled("too-large", FAR)?;
    setup.wait_volume("too-large", FAR)?;

    // The scheduler ignores the pod, and no node is selected for its claim
    setup.fixture.wait_event(claim, "pinned", "Normal WaitForFirstConsumer", "")?;
    setup.check_pending("pinned")?;
    let annotation = format!("{SELECTED_NODE}={NEAR}");
    setup.fixture.kubectl(&["annotate", "pvc", "pinned", &annotation])?;
    setup.wait_volume("pinned", NEAR)
}
