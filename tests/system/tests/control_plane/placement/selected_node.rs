//! Nodes that an administrator selects: by the annotation of a claim, and by `spec.nodeName` of a pod.

use anyhow::Result;
use serde_json::json;
use topolvm_api::SELECTED_NODE;

use super::bed::{Bed, FAR, NEAR, WAITING, device_claim};

pub(super) fn select_by_hand(bed: &Bed<'_>) -> Result<()> {
    let selected = |name: &str, gib: u64, node: &str| {
        let mut claim = device_claim(name, (WAITING, gib));
        claim["metadata"]["annotations"] = json!({SELECTED_NODE: node});
        claim
    };
    let mut pinned = bed.pod("pinned", &[("pinned", (WAITING, 10))]);
    pinned["spec"]["nodeName"] = json!(NEAR);
    bed.apply(&[selected("selected", 10, NEAR), device_claim("pinned", (WAITING, 10)), pinned])?;
    bed.wait_volume("selected", NEAR)?;
    // Only now: its reservation leaves no space for others, and no scheduler would select another node for a claim
    // without a pod
    bed.apply(&[selected("too-large", 150, NEAR)])?;
    let claim = "PersistentVolumeClaim";
    bed.fixture.wait_event(claim, "too-large", "Warning ProvisioningFailed", "ResourceExhausted")?;
    bed.fixture.wait_event(claim, "too-large", "Warning ProvisioningFailed", NEAR)?;
    // No node is selected any more, so the scheduler can select one
    bed.apply(&[bed.pod("too-large", &[("too-large", (WAITING, 150))])])?;
    bed.wait_scheduled("too-large", FAR)?;
    bed.wait_volume("too-large", FAR)?;

    // The scheduler ignores the pod, and no node is selected for its claim
    bed.fixture.wait_event(claim, "pinned", "Normal WaitForFirstConsumer", "")?;
    bed.check_pending("pinned")?;
    let annotation = format!("{SELECTED_NODE}={NEAR}");
    bed.fixture.kubectl(&["annotate", "pvc", "pinned", &annotation])?;
    bed.wait_volume("pinned", NEAR)
}
