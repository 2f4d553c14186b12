//! Volume conditions of LVs and of their thin pool that reach kubelet, for filesystems and for raw block volumes, and
//! that end with the repair.

use std::fmt::Write as _;

use anyhow::{Result, ensure};
use system_tests::manifests::{VolumeMode, claim, pod, storage_class};
use system_tests::plugin;
use testbed::topolvm::RAID_CLASSES;
use topolvm_api::ApiFlavor::TopoLvm;

use crate::Body;
use crate::fixture::Fixture;

pub(crate) fn tests() -> Vec<(String, Body)> {
    let all: [(&str, Body); 3] = [
        ("thin_pool_without_space_is_a_condition_until_it_is_extended", fill_thin_pool),
        ("mirror_without_an_image_is_a_condition_until_it_is_whole", break_mirror),
        ("doctor_reports_a_missing_disk_until_it_is_attached_again", pull_disk),
    ];
    all.map(|(name, body)| (name.to_owned(), body)).into()
}

/// Name of a small thin pool in a volume group that other tests leave empty, and of its device class.
const SMALL: &str = "small";

fn fill_thin_pool(fixture: &Fixture) -> Result<()> {
    let [_, group] = RAID_CLASSES;
    // Fail at once, instead of after a minute without an extension
    fixture.node.script(&format!(
        "lvcreate -qqy -L 64m -T {group}/{SMALL} && lvchange -qqy --errorwhenfull y {group}/{SMALL} \
         && cp /etc/topolvm/lvmd.yaml /run/lvmd.yaml"
    ))?;
    let tried = use_small_pool(fixture, group);
    let mut undo = "mv /run/lvmd.yaml /etc/topolvm/lvmd.yaml".to_owned();
    if tried.is_ok() {
        // Else the volumes in it are deleted first
        write!(undo, " && lvremove -qqy {group}/{SMALL}")?;
    }
    fixture.node.script(&undo)?;
    fixture.restart_lvmd()?;
    tried?;
    fixture.check_volumes(0)
}

fn use_small_pool(fixture: &Fixture, group: &str) -> Result<()> {
    let class = format!(
        "- {{name: {SMALL}, volume-group: {group}, spare-gb: 0, type: thin, \
         thin-pool: {{name: {SMALL}, overprovision-ratio: 10}}}}"
    );
    fixture.node.script(&format!("sed -i '/^device-classes:/a {class}' /etc/topolvm/lvmd.yaml"))?;
    fixture.restart_lvmd()?;
    fixture.apply(&storage_class(TopoLvm, SMALL, Some(SMALL), false))?;
    let names = ["dry-files", "dry-device"];
    start_pods(fixture, names, SMALL)?;
    let written =
        fixture.exec_in_pod("dry-device", "dd if=/dev/zero of=/data bs=1M count=96 oflag=direct 2>&1 || true")?;
    ensure!(written.contains("No space left") || written.contains("I/O error"), "the pool is not full: {written}");
    for name in names {
        // Not only that it is full, which lvmd may see a moment before
        let words = "the thin pool is out of data space (device class small)";
        fixture.wait_condition(name, "ThinPoolOutOfDataSpace", words)?;
    }
    fixture.wait_health(names, false)?;
    fixture.wait_storage_reasons(&fixture.node, &["ThinPoolOutOfDataSpace"])?;
    let found = format!("thin pool {group}/{SMALL}: 100 % of data used");
    plugin::wait_for_findings(&fixture.cluster, "storage", &[(&found, "extend the pool (lvextend")])?;
    fixture.node.script(&format!("lvextend -qqy -L 256m {group}/{SMALL}"))?;
    fixture.wait_health(names, true)?;
    fixture.wait_storage_reasons(&fixture.node, &[])?;
    plugin::wait_until_ok(&fixture.cluster, "storage")?;
    fixture.write_word("dry-files", "kept")?;
    for name in names {
        fixture.delete_pod_and_claim(name)?;
    }
    fixture.kubectl(&["delete", "storageclass", SMALL]).map(drop)
}

fn break_mirror(fixture: &Fixture) -> Result<()> {
    let [group, _] = RAID_CLASSES;
    fixture.apply(&storage_class(TopoLvm, "mirror", Some(group), false))?;
    let names = ["mirror-files", "mirror-device"];
    start_pods(fixture, names, "mirror")?;
    fixture.write_word("mirror-files", "before")?;
    let mirrors = format!("$(lvs --noheadings -o lv_name {group})");
    fixture.node.script(&format!(
        "for lv in {mirrors}; do \
         until [[ $(lvs --noheadings -o sync_percent {group}/$lv) == *100.00* ]]; do sleep 0.2; done; done"
    ))?;
    // One disk of each gives errors from now on
    fixture.node.script(&format!(
        "for lv in {mirrors}; do for part in rimage rmeta; do \
           device={group}-${{lv//-/--}}_${{part}}_1; \
           dmsetup load $device --table \"0 $(blockdev --getsz /dev/mapper/$device) error\" \
           && dmsetup suspend --noflush --nolockfs $device && dmsetup resume $device; \
         done; done"
    ))?;
    fixture.write_word("mirror-files", "after")?;
    fixture.exec_in_pod("mirror-device", "echo after | dd of=/data bs=512 conv=fsync 2>/dev/null")?;
    for name in names {
        let words = "a device of the RAID volume had errors and must be refreshed or replaced";
        fixture.wait_condition(name, "RaidRefreshNeeded", words)?;
    }
    fixture.wait_health(names, false)?;
    // No data is lost
    ensure!(fixture.read_word("mirror-files")? == "after", "the file has other data");
    ensure!(fixture.exec_in_pod("mirror-device", "head -c 5 /data")? == "after", "the device has other data");
    fixture.node.script(&format!("for lv in {mirrors}; do lvchange -qq --refresh {group}/$lv; done"))?;
    fixture.wait_health(names, true)?;
    for name in names {
        fixture.delete_pod_and_claim(name)?;
    }
    fixture.kubectl(&["delete", "storageclass", "mirror"])?;
    fixture.check_volumes(0)
}

fn pull_disk(fixture: &Fixture) -> Result<()> {
    let [_, group] = RAID_CLASSES;
    let pulled = "$(losetup -nO NAME -j /run/pulled)";
    fixture
        .node
        .script(&format!("truncate -s 64M /run/pulled && vgextend -qqy {group} $(losetup -f --show /run/pulled)"))?;
    // lvmd has seen it, so that the disk is one that goes
    let disks = ".status.volumeGroups[?(@.name==\"plain\")].physicalVolumes[*].path";
    fixture.cluster.ready("apiserver", || {
        let disks = fixture.value("nodestorages.topolvm.io", fixture.node.name(), disks)?;
        ensure!(disks.split(' ').count() == 3, "the disks of {group} are {disks:?}");
        Ok(())
    })?;
    fixture.node.script(&format!("losetup -d {pulled}"))?;
    let found = format!(
        "1 physical volumes of volume group {group} are missing, so LVM creates no volumes in it; attach the disk"
    );
    plugin::wait_for_findings(&fixture.cluster, "storage", &[(&found, "shows its volume groups, disks")])?;
    fixture.node.script("losetup -f /run/pulled")?;
    plugin::wait_until_ok(&fixture.cluster, "storage")?;
    fixture.node.script(&format!("vgreduce -qqy {group} {pulled} && losetup -d {pulled} && rm /run/pulled")).map(drop)
}

/// Starts a pod with a filesystem and one with a device, and waits until kubelet reports both as healthy.
fn start_pods(fixture: &Fixture, names: [&str; 2], class: &str) -> Result<()> {
    let modes = [VolumeMode::Filesystem, VolumeMode::Block];
    for (name, mode) in names.into_iter().zip(modes) {
        fixture.apply(&claim(name, class, "96Mi", mode))?;
        fixture.apply(&pod(name, name, mode))?;
    }
    for name in names {
        fixture.wait_ready(name)?;
    }
    fixture.wait_health(names, true)
}
