//! The NodeStorage of a node follows what somebody does to LVM by hand.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use testbed::topolvm::RAID_CLASSES;

use crate::Body;
use crate::fixture::{Fixture, VG};

pub(crate) fn trials() -> Vec<(String, Body)> {
    let all: [(&str, Body); 1] =
        [("the_storage_of_a_node_follows_lvm_and_names_a_disk_that_is_missing_until_it_is_given_up", follow_a_disk)];
    all.map(|(name, body)| (name.to_owned(), body)).into()
}

const STORAGE: &str = "nodestorages.topolvm.io";
/// File that is the disk of a loop device.
const FILE: &str = "/run/extra-disk";

fn follow_a_disk(fixture: &Fixture) -> Result<()> {
    let node = fixture.node.name();
    fixture.wait_value(STORAGE, node, ".status.conditions[0].reason", "StorageHealthy")?;
    let owner = fixture.value(STORAGE, node, ".metadata.ownerReferences[0].uid")?;
    ensure!(owner == fixture.value("node", node, ".metadata.uid")?, "{owner} owns the storage of the node");
    check_against_lvm(fixture)?;

    let [group, _] = RAID_CLASSES;
    let disk = fixture.node.script(&format!("truncate -s 256M {FILE} && losetup --find --show {FILE}"))?;
    let disk = disk.trim();
    let followed = follow(fixture, group, disk);
    fixture.node.script(&format!(
        "vgreduce -qqy --removemissing {group}; vgreduce -qqy {group} {disk}; pvremove -qqy {disk}; losetup -d {disk}; \
         rm -f {FILE}"
    ))?;
    followed
}

fn follow(fixture: &Fixture, group: &str, disk: &str) -> Result<()> {
    let node = fixture.node.name();
    let of_group = |path: &str| format!(".status.volumeGroups[?(@.name==\"{group}\")]{path}");
    fixture.node.script(&format!("vgextend -qqy {group} {disk}"))?;
    let paths = of_group(".physicalVolumes[*].path");
    fixture.cluster.ready("apiserver", || {
        let listed = fixture.value(STORAGE, node, &paths)?;
        ensure!(listed.split(' ').any(|path| path == disk), "{disk} is not in {listed}");
        Ok(())
    })?;
    fixture.node.script(&format!("losetup -d {disk}"))?;
    fixture.wait_value(STORAGE, node, &of_group(".physicalVolumes[?(@.missing==true)].path"), disk)?;
    fixture.wait_value(STORAGE, node, ".status.conditions[0].reason", "PhysicalVolumeMissing")?;
    let said = fixture.value(STORAGE, node, ".status.problems[0]")?;
    ensure!(said.contains(&format!("{group} lacks 1 of its physical volumes")), "{said}");
    fixture.node.script(&format!("vgreduce -qqy --removemissing {group}"))?;
    fixture.wait_value(STORAGE, node, ".status.conditions[0].reason", "StorageHealthy")?;
    check_against_lvm(fixture)
}

/// Compares the object with what LVM says of the group with most of the classes.
fn check_against_lvm(fixture: &Fixture) -> Result<()> {
    let node = fixture.node.name();
    let columns = "vg_uuid,vg_size,vg_free,vg_extent_size,pv_count";
    fixture.cluster.ready("apiserver", || {
        let report = fixture.node.script(&format!("vgs --noheadings --units b --nosuffix -o {columns} {VG}"))?;
        let [uuid, size, free, extent, disks] = report.split_whitespace().collect::<Vec<_>>()[..] else {
            anyhow::bail!("vgs says {report}")
        };
        let object: Value = serde_json::from_str(&fixture.kubectl(&["get", STORAGE, node, "-o", "json"])?)?;
        let groups = object["status"]["volumeGroups"].as_array().context("no groups")?;
        let found = groups.iter().find(|found| found["name"] == VG).context("the group is not in it")?;
        let bytes = |field: &str| {
            let quantity = serde_json::from_value(found[field].clone())?;
            anyhow::Ok(topolvm_api::parse_bytes(&quantity)?.to_string())
        };
        ensure!(found["uuid"] == uuid, "{found}");
        ensure!((bytes("size")?, bytes("free")?) == (size.to_owned(), free.to_owned()), "{found} is not {report}");
        ensure!(bytes("extentSize")? == extent, "{found} is not {report}");
        let listed = found["physicalVolumes"].as_array().map_or(0, Vec::len).to_string();
        ensure!(listed == disks, "{found} is not {report}");
        let pools = fixture.node.script(&format!("lvs --noheadings -S segtype=thin-pool -o lv_name {VG}"))?;
        let pools_of_group: Vec<&str> = object["status"]["thinPools"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|pool| pool["volumeGroup"] == VG)
            .filter_map(|pool| pool["name"].as_str())
            .collect();
        ensure!(pools.split_whitespace().eq(pools_of_group), "{pools} are not in {object}");
        Ok(())
    })
}
