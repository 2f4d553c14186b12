//! Free space that changes while pods wait: volumes that grow, a volume group that an administrator extends, nodes that
//! come and go. After the other steps, [`NEAR`] has 70 GiB free in `fast`.

use anyhow::{Result, ensure};
use serde_json::json;

use super::setup::{HERE, NEAR, Setup, WAITING, device_claim, lvm};
use crate::fixture::LV;

const GIB: u64 = 1 << 30;

pub(super) fn change_capacity(setup: &Setup<'_>) -> Result<()> {
    grow_while_scheduling(setup)?;
    extend_group(setup)?;
    add_and_remove_node(setup)
}

/// Expands a volume and creates another at the same time, with space for one of them.
fn grow_while_scheduling(setup: &Setup<'_>) -> Result<()> {
    setup.apply_pod("grower", &[("grower", (HERE, 30))])?;
    setup.wait_volume("grower", NEAR)?;
    let free = setup.near.free("fast") / GIB;
    let larger = json!({"spec": {"resources": {"requests": {"storage": format!("{}Gi", 30 + free - 5)}}}}).to_string();
    let rival = [("rival", (HERE, free - 5))];
    setup.apply(&[device_claim("rival", rival[0].1), setup.pod("rival", &rival)])?;
    setup.fixture.kubectl(&["patch", "pvc", "grower", "-p", &larger])?;
    setup.fixture.cluster.ready("apiserver", || {
        let is_scheduled = !setup.fixture.value("pod", "rival", ".spec.nodeName")?.is_empty();
        let (won, lost) = if is_scheduled {
            ("rival", has_event(setup, "PersistentVolumeClaim", "grower", "VolumeResizeFailed")?)
        } else {
            ("grower", has_event(setup, "Pod", "rival", "FailedScheduling")?)
        };
        let left = setup.near.free("fast") / GIB;
        ensure!(left == 5 && lost, "{won} has won, {left} GiB are left, and it is {lost} that the other says so");
        Ok(())
    })?;
    // Otherwise the rejected one would take the space that the next steps free
    let lost = if setup.fixture.value("pod", "rival", ".spec.nodeName")?.is_empty() { "rival" } else { "grower" };
    let volume = format!("pvc-{}", setup.fixture.value("pvc", lost, ".metadata.uid")?);
    setup.delete_pod(lost, &[lost])?;
    setup.fixture.wait("--for=delete", LV, &volume)
}

/// Extends the volume group for a pod that has waited for space since an earlier step.
fn extend_group(setup: &Setup<'_>) -> Result<()> {
    setup.check_pending("kept-here")?;
    setup.near.extend_group("fast", 300 * GIB);
    setup.wait_scheduled("kept-here", NEAR)?;
    setup.wait_volume("kept-here", NEAR)
}

fn add_and_remove_node(setup: &Setup<'_>) -> Result<()> {
    const THIRD: &str = "third";
    setup.apply_pod("huge", &[("huge", (WAITING, 2000))])?;
    setup.wait_no_space("huge")?;
    setup.add_node(THIRD, &lvm(3000, 100))?;
    setup.wait_scheduled("huge", THIRD)?;
    setup.wait_volume("huge", THIRD)?;
    let volume = setup.fixture.value("pvc", "huge", ".spec.volumeName")?;
    setup.fixture.kubectl(&["delete", "pod", "huge", "--force", "--grace-period=0"])?;
    setup.nodes.remove(THIRD)?;
    for (kind, name) in [("pvc", "huge"), (LV, &volume)] {
        setup.fixture.wait("--for=delete", kind, name)?;
    }
    setup.apply_pod("homeless", &[("homeless", (WAITING, 2000))])?;
    setup.wait_no_space("homeless")
}

fn has_event(setup: &Setup<'_>, kind: &str, name: &str, reason: &str) -> Result<bool> {
    let selector = format!("--field-selector=involvedObject.kind={kind},involvedObject.name={name},reason={reason}");
    Ok(!setup.fixture.kubectl(&["get", "events", &selector, "-o", "name"])?.is_empty())
}
