//! Deletion of volumes whose device is still open, and LVs that are renamed by hand.

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use system_tests::manifests::{VolumeMode, claim, pod};

use crate::Body;
use crate::fixture::{Fixture, VG};

pub(crate) fn tests() -> Vec<(String, Body)> {
    let all: [(&str, Body); 3] = [
        ("force_deleted_pod_keeps_block_volume_until_container_ends", delete_by_force),
        ("a_privileged_container_that_has_all_devices_keeps_no_volume", delete_with_privileged_container),
        ("lv_renamed_by_hand_is_lost_until_renamed_back", rename_volume),
    ];
    all.map(|(name, body)| (name.to_owned(), body)).into()
}

/// Deletes the pod by force while kubelet is stopped, as when the node is cut off.
fn delete_by_force(fixture: &Fixture) -> Result<()> {
    fixture.apply(&claim("cut-off", "waiting", "64Mi", VolumeMode::Block))?;
    fixture.start_pod("cut-off", VolumeMode::Block)?;
    let volume = fixture.volume_name("cut-off")?;
    fixture.node.script("kill -STOP $(pidof kubelet)")?;
    let stayed = check_volume_stays(fixture, &volume);
    fixture.node.script("kill -CONT $(pidof kubelet)")?;
    stayed?;
    fixture.wait_no_volumes()?;
    fixture.check_volumes(0)
}

fn check_volume_stays(fixture: &Fixture, volume: &str) -> Result<()> {
    // As on nodes where kubelet has no loop device that keeps the volume open: without losetup, or with another kubelet
    fixture.node.script("for loop in $(losetup -n -O NAME); do losetup -d $loop; done")?;
    fixture.kubectl(&["delete", "pod", "cut-off", "--force", "--grace-period=0"])?;
    fixture.kubectl(&["delete", "persistentvolumeclaim", "cut-off", "--wait=false"])?;
    let event = fixture.wait_event_with(volume, "RemoveFailed", "")?;
    ensure!(event.contains("is still in use: mounted at ") && event.contains("volumeDevices"), "{event}");
    fixture.check_volumes(1)
}

/// Deletes a volume while a privileged container, which has all devices, runs.
fn delete_with_privileged_container(fixture: &Fixture) -> Result<()> {
    fixture.apply(&claim("unused", "immediate", "64Mi", VolumeMode::Block))?;
    fixture.wait_bound("unused")?;
    let id = fixture.value("pv", &fixture.volume_name("unused")?, ".spec.csi.volumeHandle")?;
    let mut privileged = pod("privileged", "", VolumeMode::Filesystem);
    privileged["spec"]["volumes"] = json!([]);
    privileged["spec"]["containers"][0]["volumeMounts"] = json!([]);
    privileged["spec"]["containers"][0]["securityContext"] = json!({"privileged": true});
    fixture.apply(&privileged)?;
    fixture.wait_ready("privileged")?;
    let device = fixture.node.script(&format!("readlink -f /dev/{VG}/{id}"))?;
    fixture.exec_in_pod("privileged", &format!("test -b {}", device.trim())).context("it has not all devices")?;
    let gone = fixture.delete_claim("unused");
    fixture.delete_pod("privileged")?;
    gone?;
    fixture.check_volumes(0)
}

fn rename_volume(fixture: &Fixture) -> Result<()> {
    fixture.apply_claim("renamed", "immediate", "64Mi")?;
    fixture.wait_bound("renamed")?;
    let volume = fixture.volume_name("renamed")?;
    let id = fixture.value("pv", &volume, ".spec.csi.volumeHandle")?;
    let object = format!("logicalvolumes.topolvm.io/{volume}");
    fixture.kubectl(&["wait", "--for=condition=Ready", &object, "--timeout=180s"])?;
    fixture.node.script(&format!("lvrename -qq {VG}/{id} {VG}/aside"))?;
    let lost = "--for=jsonpath={.status.conditions[0].reason}=VolumeLost";
    let lost_event = fixture.kubectl(&["wait", lost, &object, "--timeout=180s"]).context("the loss is not reported");
    let lost_event = lost_event.and_then(|_| fixture.wait_event(&volume, "VolumeLost"));
    fixture.node.script(&format!("lvrename -qq {VG}/aside {VG}/{id}"))?;
    let message = lost_event?;
    ensure!(message.contains(&id) && message.contains("lvrename"), "{message}");
    fixture.kubectl(&["wait", "--for=condition=Ready", &object, "--timeout=180s"])?;
    fixture.delete_claim("renamed")?;
    fixture.check_volumes(0)
}
