//! Claims that cannot be satisfied: an Event reports the reason to the user, and no object or LV is left.

use anyhow::{Result, ensure};
use system_tests::manifests::{VolumeMode, claim, storage_class};
use testbed::assets;
use topolvm_api::ApiFlavor;

use crate::Body;
use crate::fixture::{Fixture, VG, logical_volume_resource};

pub(crate) fn tests() -> Vec<(String, Body)> {
    let all: [(&str, Body); 4] = [
        ("pvc_too_large_gets_an_event_and_binds_when_space_is_freed", refuse_too_large),
        ("a_claim_of_an_unknown_device_class_says_so", refuse_unknown_class),
        ("pvc_size_is_raised_to_minimum_and_whole_extents", check_sizes),
        ("pvc_resize_beyond_vg_is_reported_and_volume_stays_usable", refuse_too_much_growth),
    ];
    all.map(|(name, body)| (name.to_owned(), body)).into()
}

fn refuse_too_large(fixture: &Fixture) -> Result<()> {
    fixture.apply_claim("filler", "immediate", "6Gi")?;
    fixture.wait_bound("filler")?;
    fixture.apply_claim("large", "immediate", "4Gi")?;
    let event = fixture.wait_event_with("large", "ProvisioningFailed", "ResourceExhausted")?;
    ensure!(event.contains("no enough space"), "the event says: {event}");
    // The provisioner retries, so its LogicalVolume is created and deleted repeatedly, but LVM never has an LV for it
    let volumes = fixture.node.script(&format!("lvs --noheadings -o lv_name {VG}"))?;
    ensure!(volumes.split_whitespace().count() == 1, "LVs: {volumes}");
    fixture.delete_claim("filler")?;
    fixture.wait_bound("large")?;
    fixture.check_volumes(1)?;
    fixture.delete_claim("large")?;
    fixture.check_volumes(0)
}

fn refuse_unknown_class(fixture: &Fixture) -> Result<()> {
    fixture.apply_claim("lost", "unknown", "64Mi")?;
    fixture.wait_event_with("lost", "ProvisioningFailed", "no-such-class")?;
    // The provisioner retries, so its LogicalVolume is created and deleted repeatedly, and the last one may briefly
    // outlive the claim
    fixture.delete_claim("lost")?;
    fixture.cluster.ready("apiserver", || fixture.check_volumes(0))
}

fn refuse_too_much_growth(fixture: &Fixture) -> Result<()> {
    fixture.apply_claim("greedy", "immediate", "64Mi")?;
    fixture.wait_bound("greedy")?;
    let volume = format!("{}/{}", logical_volume_resource(ApiFlavor::TopoLvm), fixture.volume_name("greedy")?);
    let wait = |condition: &str| fixture.kubectl(&["wait", condition, &volume, "--timeout=180s"]);
    wait("--for=condition=Ready")?;
    let shown = fixture.kubectl(&["get", &volume, "--no-headers"])?;
    ensure!(shown.contains(" VolumeReady "), "kubectl shows: {shown}");
    fixture.request_size("greedy", "100Gi")?;
    fixture.wait_event_with("greedy", "VolumeResizeFailed", "OutOfRange")?;
    wait("--for=condition=Ready=false")?;
    wait("--for=jsonpath={.status.conditions[0].reason}=ExpandFailed")?;
    // The oldest Kubernetes rejects a smaller request
    if !assets::is_oldest_kubernetes() {
        // The user steps back, as the resizer allows after OutOfRange
        fixture.expand("greedy", "128Mi")?;
        wait("--for=condition=Ready")?;
    }
    fixture.check_volumes(1)?;
    fixture.delete_claim("greedy")?;
    fixture.check_volumes(0)
}

fn check_sizes(fixture: &Fixture) -> Result<()> {
    let wanted = [
        ("xfs", VolumeMode::Filesystem, "1Mi", "300Mi"),
        ("btrfs", VolumeMode::Filesystem, "1Mi", "200Mi"),
        ("ext4", VolumeMode::Filesystem, "1Mi", "32Mi"),
        ("block", VolumeMode::Block, "1Mi", "8Mi"),
        ("extents", VolumeMode::Block, "61Mi", "64Mi"),
    ];
    for (name, mode, size, _) in wanted {
        let mut class = storage_class(ApiFlavor::TopoLvm, name, None, true);
        if mode == VolumeMode::Filesystem {
            class["parameters"]["csi.storage.k8s.io/fstype"] = name.into();
        }
        fixture.apply(&class)?;
        fixture.apply(&claim(name, name, size, mode))?;
    }
    for (name, _, _, size) in wanted {
        fixture.wait_bound(name)?;
        fixture.wait_value("pvc", name, ".status.capacity.storage", size)?;
    }
    // The claim also shows the size after an expansion
    fixture.request_size("block", "61Mi")?;
    fixture.wait_value("pvc", "block", ".status.capacity.storage", "64Mi")?;
    fixture.check_volumes(wanted.len())?;
    for (name, ..) in wanted {
        fixture.delete_claim(name)?;
        fixture.kubectl(&["delete", "storageclass", name])?;
    }
    fixture.check_volumes(0)
}
