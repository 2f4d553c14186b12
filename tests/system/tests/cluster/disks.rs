//! A disk joins the volume group of a node, is emptied under a pod that writes, and leaves: by `kubectl topolvm disk`.

use anyhow::{Context as _, Result, ensure};
use system_tests::manifests::VolumeMode;
use system_tests::plugin;

use crate::Body;
use crate::fixture::{Fixture, VG};

/// A disk that the node gets: a loop device on a file.
const MAKE_DISK: &str = "truncate -s 512M /var/lib/kubelet/more && losetup -f --show /var/lib/kubelet/more";
const OPERATIONS: &str = "diskoperations.topolvm.io";
/// Lists the disks of the volume group.
const DISKS: &str = "pvs --noheadings -o pv_name --select vg_name=myvg1";
/// Writes numbers to the end of a file for as long as there is no file `stop`.
const WRITE: &str = "cd /data; (n=0; until [ -e stop ]; do n=$((n + 1)); echo $n >>numbers; sync numbers || echo \
                     failed >>failures; done; echo $n >last) >/dev/null 2>&1 &";

pub(crate) fn tests() -> Vec<(String, Body)> {
    let name = "plugin_evacuates_and_removes_a_disk_under_a_writing_pod";
    vec![(name.to_owned(), empty_and_remove)]
}

fn empty_and_remove(fixture: &Fixture) -> Result<()> {
    let disk = fixture.node.script(MAKE_DISK)?.trim().to_owned();
    let done = extend_group(fixture, &disk).and_then(|()| empty_disk(fixture, &disk));
    let removed = fixture.node.script(&format!(
        "vgreduce -qq {VG} {disk} 2>/dev/null || :; pvremove -qq {disk}; losetup -d {disk}; rm /var/lib/kubelet/more
        {DISKS} | xargs pvchange -qq -x y 2>/dev/null || :; vgchange -qq --deltag topolvm.io/disk-group={VG} {VG}"
    ));
    done?;
    removed.map(drop)
}

/// Adds the disk to the volume group, which lvmd then manages, and has the next volume created there.
fn extend_group(fixture: &Fixture, disk: &str) -> Result<()> {
    fixture.node.script(&format!(
        "vgchange -qq --addtag topolvm.io/disk-group={VG} {VG}; {DISKS} | xargs pvchange -qq -x n
        vgextend -qq {VG} {disk}"
    ))?;
    fixture.apply_claim("moved", "waiting", "128Mi")?;
    fixture.start_pod("moved", VolumeMode::Filesystem)?;
    fixture.node.script(&format!("{DISKS} | grep -v {disk} | xargs pvchange -qq -x y"))?;
    fixture.write_word("moved", "precious")?;
    fixture.exec_in_pod("moved", WRITE).map(drop)
}

fn empty_disk(fixture: &Fixture, disk: &str) -> Result<()> {
    let node = fixture.node.name();
    let used = || fixture.node.script(&format!("pvs --noheadings -o pv_used --units b --nosuffix {disk}"));
    ensure!(used()?.trim() != "0", "the volume is on another disk");
    fixture.cluster.ready("apiserver", || {
        let listed = plugin::run_successfully(&fixture.cluster, &["disk", "list", node])?;
        ensure!(listed.text.contains(disk), "{disk} is not listed: {listed:?}");
        Ok(())
    })?;
    let kubeconfig = fixture.cluster.inner_kubeconfig();
    let asked = plugin::run(&fixture.cluster, &kubeconfig, &["disk", "remove", node, disk])?;
    ensure!(!asked.is_success && asked.errors.contains("--yes"), "it is not asked for: {asked:?}");

    cancel(fixture, node, disk)?;
    plugin::run_successfully(&fixture.cluster, &["disk", "evacuate", node, disk])?;
    ensure!(used()?.trim() == "0", "the disk is reported to be empty, and is not");
    fixture.wait_event(node, "DiskEvacuated")?;
    // It stays empty without its operation
    fixture.kubectl(&["delete", OPERATIONS, "--all", "--timeout=180s"])?;
    plugin::run_successfully(&fixture.cluster, &["disk", "evacuate", node, disk, "--stop"])?;
    check_allocatable(fixture, disk)?;
    fixture.kubectl(&["delete", OPERATIONS, "--all", "--timeout=180s"])?;

    plugin::run_successfully(&fixture.cluster, &["disk", "remove", node, disk, "--yes"])?;
    fixture.wait_event(node, "DiskRemoved")?;
    let disks = fixture.node.script(&format!("pvs --noheadings -o pv_name --select vg_name={VG}"))?;
    ensure!(!disks.contains(disk), "it is still in the group: {disks}");
    let table = fixture.kubectl(&["get", OPERATIONS])?;
    let row = table.lines().find(|line| line.contains("Remove")).context("the removal is not listed")?;
    ensure!(row.contains("Succeeded") && row.contains(node), "{table}");
    fixture.kubectl(&["delete", OPERATIONS, "--all", "--timeout=180s"])?;
    check_data(fixture).context("what was written meanwhile")?;
    fixture.delete_pod_and_claim("moved")
}

/// Cancels an evacuation that would take minutes: LVM has no trace of it when the object is deleted.
fn cancel(fixture: &Fixture, node: &str, disk: &str) -> Result<()> {
    plugin::run_successfully(&fixture.cluster, &["disk", "evacuate", node, disk, "--rate", "1Mi", "--no-wait"])?;
    let state = || fixture.kubectl(&["get", OPERATIONS, "-o", "jsonpath={.items[*].status.phase}"]);
    fixture.cluster.ready("apiserver", || {
        let phase = state()?;
        ensure!(phase == "Running", "the evacuation is {phase:?}");
        Ok(())
    })?;
    plugin::run_successfully(&fixture.cluster, &["disk", "evacuate", node, disk, "--stop"])?;
    ensure!(state()?.is_empty(), "the operation is still listed");
    check_allocatable(fixture, disk)
}

/// The disk gets new volumes, and LVM has no evacuation on record.
fn check_allocatable(fixture: &Fixture, disk: &str) -> Result<()> {
    let said = fixture.node.script(&format!("pvs --noheadings -o pv_attr,pv_tags {disk}"))?;
    ensure!(said.trim_start().starts_with('a') && !said.contains("evacuate"), "{disk} is {said}");
    Ok(())
}

/// Checks that the pod has written without an error, and that no write is lost.
fn check_data(fixture: &Fixture) -> Result<()> {
    ensure!(fixture.read_word("moved")? == "precious", "the data has changed");
    let script = "cd /data; touch stop; until [ -e last ]; do sleep 0.1; done; seq $(cat last) | cmp - numbers && \
                  ls failures 2>&1; cat last";
    let said = fixture.exec_in_pod("moved", script)?;
    ensure!(said.contains("No such file"), "a write has failed, or is lost: {said}");
    Ok(())
}
