//! Device classes, options of lvcreate, and the overprovisioning of a thin pool.

use anyhow::{Result, ensure};
use serde_json::json;
use system_tests::manifests::{VolumeMode, claim, storage_class};
use testbed::topolvm::{RAID_CLASSES, THIN_POOL, THIN_VG};
use topolvm_api::ApiFlavor::TopoLvm;

use crate::Body;
use crate::events::{create_volume, delete_volumes};
use crate::fixture::{Fixture, VG, logical_volume_resource};

pub(crate) fn tests() -> Vec<(String, Body)> {
    let all: [(&str, Body); 5] = [
        ("lvcreate_options_of_device_and_storage_class_create_raid1", create_raid_volumes),
        ("device_class_selects_volume_group_and_has_a_default", create_in_each_group),
        ("storage_class_without_device_class_uses_the_default", use_default_class),
        ("static_volume_binds_without_class_and_outlives_its_claim", create_by_hand),
        ("thin_class_overprovisions_its_pool_up_to_the_ratio", fill_thin_pool),
    ];
    all.map(|(name, body)| (name.to_owned(), body)).into()
}

fn create_raid_volumes(fixture: &Fixture) -> Result<()> {
    let [with_options, without] = RAID_CLASSES;
    fixture.apply(&storage_class(TopoLvm, "by-class", Some(with_options), true))?;
    let mut by_option = storage_class(TopoLvm, "by-option", Some(without), true);
    by_option["parameters"]["topolvm.io/lvcreate-option-class"] = "mirrored".into();
    fixture.apply(&by_option)?;
    for name in ["by-class", "by-option"] {
        fixture.apply(&claim(name, name, "64Mi", VolumeMode::Block))?;
    }
    for (name, group) in [("by-class", with_options), ("by-option", without)] {
        fixture.wait_bound(name)?;
        let lv = fixture.node.script(&format!("lvs --noheadings -o segtype,lv_size --units m {group}"))?;
        ensure!(lv.split_whitespace().eq(["raid1", "64.00m"]), "{name} is {lv}");
        fixture.delete_claim(name)?;
        fixture.kubectl(&["delete", "storageclass", name])?;
    }
    fixture.wait_no_volumes()
}

fn create_in_each_group(fixture: &Fixture) -> Result<()> {
    fixture.apply(&storage_class(TopoLvm, "named", Some("ssd"), true))?;
    for (name, group) in [("named", VG), ("immediate", VG), ("thin-now", THIN_VG)] {
        fixture.apply(&claim(name, name, "64Mi", VolumeMode::Block))?;
        fixture.wait_bound(name)?;
        let volume = fixture.get_object("logicalvolumes.topolvm.io", &fixture.volume_name(name)?)?;
        let id = volume["metadata"]["uid"].as_str().unwrap_or("no UID");
        let pool = fixture.node.script(&format!("lvs --noheadings -o pool_lv {group}/{id}"))?;
        ensure!(pool.trim() == if group == THIN_VG { THIN_POOL } else { "" }, "{name} is in pool {pool}");
    }
    for name in ["named", "immediate", "thin-now"] {
        fixture.delete_claim(name)?;
    }
    fixture.kubectl(&["delete", "storageclass", "named"])?;
    fixture.wait_no_volumes()
}

fn use_default_class(fixture: &Fixture) -> Result<()> {
    let mut blank = storage_class(TopoLvm, "blank", None, false);
    blank["parameters"] = json!({"topolvm.io/device-class": ""});
    fixture.apply(&blank)?;
    let mut bare = storage_class(TopoLvm, "bare", None, false);
    bare["parameters"] = json!({});
    fixture.apply(&bare)?;
    for name in ["blank", "bare"] {
        fixture.apply_claim(name, name, "64Mi")?;
        fixture.start_pod(name, VolumeMode::Filesystem)?;
        fixture.write_word(name, name)?;
    }
    for name in ["blank", "bare"] {
        ensure!(fixture.read_word(name)? == name, "{name} reads {}", fixture.read_word(name)?);
        let volume = fixture.get_object(&logical_volume_resource(TopoLvm), &fixture.volume_name(name)?)?;
        ensure!(volume["spec"]["deviceClass"].as_str().unwrap_or_default().is_empty(), "{}", volume["spec"]);
        let id = volume["metadata"]["uid"].as_str().unwrap_or("no UID");
        let group = fixture.node.script(&format!("lvs --noheadings -o vg_name,lv_size --units m -S lv_name={id}"))?;
        ensure!(group.split_whitespace().eq([VG, "64.00m"]), "{name} is in {group}");
    }
    // None in another group
    fixture.check_volumes(2)?;
    for name in ["blank", "bare"] {
        fixture.delete_pod_and_claim(name)?;
        fixture.kubectl(&["delete", "storageclass", name])?;
    }
    fixture.wait_no_volumes()
}

/// Creates a volume by hand, as an administrator does with a statically provisioned volume: a LogicalVolume, a
/// PersistentVolume for it, a claim with no class.
fn create_by_hand(fixture: &Fixture) -> Result<()> {
    let id = create_volume(fixture, "by-hand", "64Mi")?;
    let volumes = logical_volume_resource(TopoLvm);
    fixture.wait_value(&volumes, "by-hand", ".status.currentSize", "64Mi")?;
    fixture.wait_value(&volumes, "by-hand", ".metadata.finalizers", r#"["topolvm.io/logicalvolume"]"#)?;
    let here = json!({"key": TopoLvm.topology_key(), "operator": "In", "values": [fixture.node.name()]});
    fixture.apply(&json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "by-hand"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "64Mi"},
            "csi": {"driver": "topolvm.io", "volumeHandle": id, "fsType": "ext4"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [here]}]}},
            "persistentVolumeReclaimPolicy": "Retain",
        },
    }))?;
    let mut claim = claim("by-hand", "", "64Mi", VolumeMode::Filesystem);
    claim["spec"]["volumeName"] = json!("by-hand");
    fixture.apply(&claim)?;
    fixture.start_pod("by-hand", VolumeMode::Filesystem)?;
    fixture.write_word("by-hand", "mine")?;
    fixture.check_volumes(1)?;
    fixture.delete_pod("by-hand")?;
    fixture.kubectl(&["delete", "pvc", "by-hand", "--timeout=180s"])?;
    fixture.kubectl(&["delete", "pv", "by-hand", "--timeout=180s"])?;
    // Only the administrator who created it removes it
    fixture.check_volumes(1)?;
    delete_volumes(fixture, &["by-hand"])?;
    fixture.check_volumes(0)
}

/// Creates volumes in a thin pool of 6 GiB that is overprovisioned to 120 GiB.
fn fill_thin_pool(fixture: &Fixture) -> Result<()> {
    for (name, size) in [("first", "60Gi"), ("second", "50Gi"), ("third", "20Gi")] {
        fixture.apply(&claim(name, "thin-now", size, VolumeMode::Block))?;
        if name != "third" {
            fixture.wait_bound(name)?;
        }
    }
    fixture.wait_event_with("third", "ProvisioningFailed", "ResourceExhausted")?;
    let volumes = fixture.node.script(&format!("lvs --noheadings -o lv_name {THIN_VG} | grep -vwc {THIN_POOL}"))?;
    ensure!(volumes.trim() == "2", "{volumes} thin volumes");
    for name in ["third", "second", "first"] {
        fixture.delete_claim(name)?;
    }
    fixture.wait_no_volumes()
}
