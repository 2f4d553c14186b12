//! Pods with volumes of several classes, generic ephemeral volumes, and StorageClasses with `allowedTopologies`.

use anyhow::Result;
use serde_json::json;

use super::bed::{Bed, FAR, HERE, NEAR, SLOW, WAITING};
use crate::fixture::LV;

pub(super) fn place_by_class(bed: &Bed<'_>) -> Result<()> {
    // Only one node has room for the first, and that has room for the second too
    bed.apply_pod("both", &[("both-fast", (WAITING, 300)), ("both-slow", (SLOW, 50))])?;
    // Each node has room for one of them
    bed.apply_pod("torn", &[("torn-fast", (WAITING, 300)), ("torn-slow", (SLOW, 300))])?;
    let scratch = json!({"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {
        "accessModes": ["ReadWriteOnce"], "volumeMode": "Block", "storageClassName": WAITING,
        "resources": {"requests": {"storage": "300Gi"}},
    }}}});
    bed.apply(&[bed.pod_with_volumes("ephemeral", &[scratch], [(WAITING, 300)].into_iter())])?;
    bed.apply_pod("allowed", &[("allowed", (HERE, 10))])?;
    bed.apply_pod("kept-here", &[("kept-here", (HERE, 200))])?;

    bed.wait_scheduled("both", FAR)?;
    bed.wait_volume("both-fast", FAR)?;
    bed.wait_volume("both-slow", FAR)?;
    bed.wait_scheduled("ephemeral", FAR)?;
    bed.wait_volume("ephemeral-scratch", FAR)?;
    bed.wait_scheduled("allowed", NEAR)?;
    for (pod, claims) in [("torn", &["torn-fast", "torn-slow"][..]), ("kept-here", &["kept-here"])] {
        bed.wait_no_room(pod)?;
        for claim in claims {
            bed.check_pending(claim)?;
            let volume = format!("pvc-{}", bed.fixture.value("pvc", claim, ".metadata.uid")?);
            bed.fixture.wait("--for=delete", LV, &volume)?;
        }
    }
    // It would take the room that later steps make
    bed.delete_pod("torn", &["torn-fast", "torn-slow"])
}
