//! Free space that changes while pods wait: volumes that grow, a volume group that an administrator extends, nodes that
//! come and go. After the other steps, [`NEAR`] has 70 GiB free in `fast`.

use anyhow::{Result, ensure};
use serde_json::json;

use super::bed::{Bed, HERE, NEAR, WAITING, device_claim, lvm};
use crate::fixture::LV;

const GIB: u64 = 1 << 30;

pub(super) fn change_capacity(bed: &Bed<'_>) -> Result<()> {
    grow_while_scheduling(bed)?;
    extend_group(bed)?;
    add_and_remove_node(bed)
}

/// Expands a volume and creates another at the same time, with space for one of them.
fn grow_while_scheduling(bed: &Bed<'_>) -> Result<()> {
    bed.apply_pod("grower", &[("grower", (HERE, 30))])?;
    bed.wait_volume("grower", NEAR)?;
    let free = bed.near.free("fast") / GIB;
    let larger = json!({"spec": {"resources": {"requests": {"storage": format!("{}Gi", 30 + free - 5)}}}}).to_string();
    let rival = [("rival", (HERE, free - 5))];
    bed.apply(&[device_claim("rival", rival[0].1), bed.pod("rival", &rival)])?;
    bed.fixture.kubectl(&["patch", "pvc", "grower", "-p", &larger])?;
    bed.fixture.cluster.ready("apiserver", || {
        let is_scheduled = !bed.fixture.value("pod", "rival", ".spec.nodeName")?.is_empty();
        let (won, lost) = if is_scheduled {
            ("rival", has_event(bed, "PersistentVolumeClaim", "grower", "VolumeResizeFailed")?)
        } else {
            ("grower", has_event(bed, "Pod", "rival", "FailedScheduling")?)
        };
        let left = bed.near.free("fast") / GIB;
        ensure!(left == 5 && lost, "{won} has won, {left} GiB are left, and it is {lost} that the other says so");
        Ok(())
    })?;
    // Otherwise the rejected one would take the space that the next steps free
    let lost = if bed.fixture.value("pod", "rival", ".spec.nodeName")?.is_empty() { "rival" } else { "grower" };
    let volume = format!("pvc-{}", bed.fixture.value("pvc", lost, ".metadata.uid")?);
    bed.delete_pod(lost, &[lost])?;
    bed.fixture.wait("--for=delete", LV, &volume)
}

/// Extends the volume group for a pod that has waited for space since an earlier step.
fn extend_group(bed: &Bed<'_>) -> Result<()> {
    bed.check_pending("kept-here")?;
    bed.near.extend_group("fast", 300 * GIB);
    bed.wait_scheduled("kept-here", NEAR)?;
    bed.wait_volume("kept-here", NEAR)
}

fn add_and_remove_node(bed: &Bed<'_>) -> Result<()> {
    const THIRD: &str = "third";
    bed.apply_pod("huge", &[("huge", (WAITING, 2000))])?;
    bed.wait_no_space("huge")?;
    bed.add_node(THIRD, &lvm(3000, 100))?;
    bed.wait_scheduled("huge", THIRD)?;
    bed.wait_volume("huge", THIRD)?;
    let volume = bed.fixture.value("pvc", "huge", ".spec.volumeName")?;
    bed.fixture.kubectl(&["delete", "pod", "huge", "--force", "--grace-period=0"])?;
    bed.nodes.remove(THIRD)?;
    for (kind, name) in [("pvc", "huge"), (LV, &volume)] {
        bed.fixture.wait("--for=delete", kind, name)?;
    }
    bed.apply_pod("homeless", &[("homeless", (WAITING, 2000))])?;
    bed.wait_no_space("homeless")
}

fn has_event(bed: &Bed<'_>, kind: &str, name: &str, reason: &str) -> Result<bool> {
    let selector = format!("--field-selector=involvedObject.kind={kind},involvedObject.name={name},reason={reason}");
    Ok(!bed.fixture.kubectl(&["get", "events", &selector, "-o", "name"])?.is_empty())
}
