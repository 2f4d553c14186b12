//! A disk group that is for some nodes: a disk joins it when its node gets the label by kubectl, and existing volumes
//! work when the label is removed.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use system_tests::manifests::{VolumeMode, storage_class};
use system_tests::workloads;
use topolvm_api::ApiFlavor;

use crate::Body;
use crate::fixture::Fixture;

/// The volume group, its device class and the StorageClass.
const GROUP: &str = "labelled";
const LABEL: &str = "storage.example.com/kind";
const CONFIG: &str = "
rescan-interval: 1
settle-time: 0
disk-groups:
- {name: labelled, mode: auto, paths: [/dev/sd.], spare-gb: 0, node-labels: [storage.example.com/kind=fast]}
";
/// Lets LVM see SCSI disks.
const SHOW_DISKS: &str = "cd /etc/lvm && cp lvmlocal.conf /run/lvmlocal.conf && echo \
                          'devices/global_filter=[\"a|^/dev/ubd|\",\"a|^/dev/loop|\",\"a|^/dev/sd|\",\"r|.*|\"]' \
                          >>lvmlocal.conf";
/// Plugs a disk in, by the kernel's module that has them in memory.
const PLUG_FIRST: &str = "modprobe sd_mod && modprobe scsi_debug add_host=1 dev_size_mb=256 per_host_store=1 \
                          max_luns=1 num_tgts=1 delay=0 removable=0";
const PLUG_ANOTHER: &str = "echo 1 >/sys/bus/pseudo/drivers/scsi_debug/add_host";

pub(crate) fn tests() -> Vec<(String, Body)> {
    vec![("node_label_adds_disk_to_its_group_and_removal_keeps_it".to_owned(), join_by_label)]
}

fn join_by_label(fixture: &Fixture) -> Result<()> {
    let before = workloads::lvmd_config(&fixture.cluster)?;
    let config = before.as_str().context("lvmd.yaml is no text")?;
    fixture.node.script(SHOW_DISKS)?;
    fixture.node.script(PLUG_FIRST)?;
    let done = workloads::set_lvmd_config(&fixture.cluster, &json!(format!("{config}{CONFIG}")))
        .and_then(|()| follow_label(fixture));
    fixture.kubectl(&["label", "node", fixture.node.name(), &format!("{LABEL}-")])?;
    fixture.kubectl(&["delete", "storageclass", GROUP, "--ignore-not-found"])?;
    // lvmd has the disks open while it scans them, so the module could not be unloaded
    let restored = workloads::set_lvmd_config(&fixture.cluster, &before).and_then(|()| wait_for_disks(fixture, &[]));
    let disks = "pvs --noheadings -o pv_name --select vg_name=labelled";
    let removed = fixture.node.script(&format!(
        "disks=$({disks}); if [ -n \"$disks\" ]; then vgremove -ffqqy labelled; pvremove -qq $disks; fi
        mv /run/lvmlocal.conf /etc/lvm/lvmlocal.conf; modprobe -r scsi_debug"
    ));
    done?;
    restored?;
    removed.map(drop)
}

fn follow_label(fixture: &Fixture) -> Result<()> {
    let node = fixture.node.name();
    wait_for_disks(fixture, &[("refused", "applies to nodes with the labels storage.example.com/kind=fast, which")])?;
    ensure!(fixture.value("node", node, &capacity())?.is_empty(), "a class is offered that has no disk");
    let ready = fixture.value("nodestorages.topolvm.io", node, ".status.conditions[0].status")?;
    ensure!(ready == "True", "a group of other nodes is reported as a problem");

    fixture.kubectl(&["label", "node", node, &format!("{LABEL}=fast")])?;
    wait_for_disks(fixture, &[("member", "belongs to disk group labelled")])?;
    fixture.wait_value_present("node", node, &capacity())?;
    fixture.wait_event(node, "DiskAdded")?;
    fixture.apply(&storage_class(ApiFlavor::TopoLvm, GROUP, Some(GROUP), false))?;
    fixture.apply_claim(GROUP, GROUP, "64Mi")?;
    fixture.start_pod(GROUP, VolumeMode::Filesystem)?;
    fixture.write_word(GROUP, "precious")?;

    fixture.kubectl(&["label", "node", node, &format!("{LABEL}-")])?;
    fixture.node.script(PLUG_ANOTHER)?;
    wait_for_disks(fixture, &[("refused", "applies to nodes with the labels"), ("member", "belongs to disk group")])?;
    ensure!(fixture.read_word(GROUP)? == "precious", "the data has changed");
    fixture.delete_pod_and_claim(GROUP)?;
    // The class still creates volumes
    fixture.apply_claim("later", GROUP, "64Mi")?;
    fixture.start_pod("later", VolumeMode::Filesystem)?;
    fixture.delete_pod_and_claim("later")
}

fn capacity() -> String {
    format!(".metadata.annotations.capacity\\.topolvm\\.io/{GROUP}")
}

/// Waits until the NodeStorage has these SCSI disks, each with a state and a part of its message.
fn wait_for_disks(fixture: &Fixture, expected: &[(&str, &str)]) -> Result<()> {
    fixture.cluster.ready("apiserver", || {
        let storage = fixture.get_object("nodestorages.topolvm.io", fixture.node.name())?;
        let disks: Vec<Value> = storage["status"]["disks"].as_array().cloned().unwrap_or_default();
        let is_scsi = |disk: &&Value| disk["path"].as_str().is_some_and(|path| path.starts_with("/dev/sd"));
        let disks: Vec<_> = disks.iter().filter(is_scsi).collect();
        let is_so = |(disk, (state, words)): (&&Value, &(&str, &str))| {
            disk["state"] == *state && disk["message"].as_str().is_some_and(|message| message.contains(words))
        };
        let all = disks.len() == expected.len() && disks.iter().zip(expected).all(is_so);
        ensure!(all, "{expected:?} is expected, and there is {disks:?}");
        Ok(())
    })
}
