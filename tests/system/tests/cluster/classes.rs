//! What a volume is made of: device classes, options of lvcreate, promises of a thin pool.

use anyhow::{Result, ensure};
use system_tests::manifests::{VolumeMode, claim, storage_class};
use testbed::topolvm::{RAID_CLASSES, THIN_POOL, THIN_VG};
use topolvm_api::ApiFlavor::TopoLvm;

use crate::Body;
use crate::fixture::{Fixture, VG};

pub(crate) fn trials() -> Vec<(String, Body)> {
    let all: [(&str, Body); 3] = [
        ("raid_volumes_are_made_by_the_options_of_the_device_class_and_of_the_storage_class", raid),
        ("each_class_has_its_volume_group_and_the_default_is_taken_when_none_is_named", groups),
        ("a_thin_class_promises_more_than_its_pool_has_and_no_more_than_its_ratio_allows", promises),
    ];
    all.map(|(name, body)| (name.to_owned(), body)).into()
}

fn raid(fixture: &Fixture) -> Result<()> {
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

fn groups(fixture: &Fixture) -> Result<()> {
    fixture.apply(&storage_class(TopoLvm, "named", Some("ssd"), true))?;
    for (name, group) in [("named", VG), ("immediate", VG), ("thin-now", THIN_VG)] {
        fixture.apply(&claim(name, name, "64Mi", VolumeMode::Block))?;
        fixture.wait_bound(name)?;
        let volume = fixture.object("logicalvolumes.topolvm.io", &fixture.volume(name)?)?;
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

/// The pool has 6 GiB and promises 120.
fn promises(fixture: &Fixture) -> Result<()> {
    for (name, size) in [("first", "60Gi"), ("second", "50Gi"), ("third", "20Gi")] {
        fixture.apply(&claim(name, "thin-now", size, VolumeMode::Block))?;
        if name != "third" {
            fixture.wait_bound(name)?;
        }
    }
    let event = fixture.wait_event("third", "ProvisioningFailed")?;
    ensure!(event.contains("ResourceExhausted"), "the event says: {event}");
    let volumes = fixture.node.script(&format!("lvs --noheadings -o lv_name {THIN_VG} | grep -vwc {THIN_POOL}"))?;
    ensure!(volumes.trim() == "2", "{volumes} thin volumes");
    for name in ["third", "second", "first"] {
        fixture.delete_claim(name)?;
    }
    fixture.wait_no_volumes()
}
