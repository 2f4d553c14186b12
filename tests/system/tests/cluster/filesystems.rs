//! The filesystems beside the one of the main job, and what becomes of damaged ones.

use anyhow::{Context as _, Result, ensure};
use system_tests::manifests::{VolumeMode, pod, storage_class};
use topolvm_api::ApiFlavor;

use crate::Body;
use crate::fixture::{Fixture, VG};

pub(crate) fn trials() -> Vec<(String, Body)> {
    let all: [(&str, Body); 4] = [
        ("an_xfs_volume_keeps_its_data_and_grows", |fixture| grows(fixture, "xfs", "320Mi", "640Mi")),
        ("a_btrfs_volume_keeps_its_data_and_grows", |fixture| grows(fixture, "btrfs", "256Mi", "512Mi")),
        ("a_filesystem_that_the_kernel_stopped_is_an_event_and_is_repaired_for_the_next_pod", stopped),
        ("a_damaged_filesystem_is_not_mounted_and_the_event_says_what_to_do", damaged),
    ];
    all.map(|(name, body)| (name.to_owned(), body)).into()
}

/// A StorageClass for this filesystem with one mount option.
fn apply_class(fixture: &Fixture, name: &str, filesystem: &str, option: &str) -> Result<()> {
    let mut class = storage_class(ApiFlavor::TopoLvm, name, None, false);
    class["mountOptions"] = vec![option].into();
    class["parameters"]["csi.storage.k8s.io/fstype"] = filesystem.into();
    fixture.apply(&class)
}

fn grows(fixture: &Fixture, filesystem: &str, small: &str, large: &str) -> Result<()> {
    apply_class(fixture, filesystem, filesystem, "noatime")?;
    fixture.apply_claim("fs", filesystem, small)?;
    fixture.apply(&pod("fs", "fs", VolumeMode::Filesystem))?;
    fixture.wait_ready("fs")?;
    let mount = fixture.in_pod("fs", "grep ' /data ' /proc/mounts")?;
    ensure!(mount.contains(&format!(" {filesystem} ")), "mounted is: {mount}");
    fixture.in_pod("fs", "echo kept >/data/file && sync")?;
    let before = mebibytes(fixture)?;
    fixture.request_size("fs", large)?;
    let condition = format!("--for=jsonpath={{.status.capacity.storage}}={large}");
    fixture.kubectl(&["wait", &condition, "persistentvolumeclaim/fs", "--timeout=90s"])?;
    let after = mebibytes(fixture)?;
    ensure!(after > before + 200, "df shows {before} MiB before and {after} MiB after");
    fixture.kubectl(&["delete", "pod", "fs"])?;
    fixture.apply(&pod("fs", "fs", VolumeMode::Filesystem))?;
    fixture.wait_ready("fs")?;
    ensure!(fixture.in_pod("fs", "cat /data/file")? == "kept\n", "the file did not survive");
    fixture.kubectl(&["delete", "pod", "fs"])?;
    fixture.delete_claim("fs")?;
    fixture.kubectl(&["delete", "storageclass", filesystem])?;
    fixture.check_volumes(0)
}

fn mebibytes(fixture: &Fixture) -> Result<u64> {
    let output = fixture.in_pod("fs", "df -mP /data | tail -n 1")?;
    let size = output.split_whitespace().nth(1).context("df printed no size")?;
    size.parse().with_context(|| format!("df printed {output}"))
}

fn stopped(fixture: &Fixture) -> Result<()> {
    apply_class(fixture, "strict", "ext4", "errors=remount-ro")?;
    fixture.apply_claim("ill", "strict", "64Mi")?;
    fixture.apply(&pod("ill", "ill", VolumeMode::Filesystem))?;
    fixture.wait_ready("ill")?;
    fixture.in_pod("ill", "echo kept >/data/file && sync")?;
    fixture.node.script("for trigger in /sys/fs/ext4/dm-*/trigger_fs_error; do echo test >$trigger; done")?;
    let event = fixture.wait_event("ill", "VolumeConditionAbnormal")?;
    ensure!(event.contains("read-only"), "the event says: {event}");
    fixture.kubectl(&["delete", "pod", "ill"])?;
    fixture.apply(&pod("ill", "ill", VolumeMode::Filesystem))?;
    fixture.wait_ready("ill")?;
    let text = fixture.in_pod("ill", "cat /data/file && echo new >/data/file")?;
    ensure!(text == "kept\n", "read {text:?}");
    let state =
        fixture.node.script(&format!("dumpe2fs -h {} 2>/dev/null | grep 'Filesystem state'", device_of_one()))?;
    ensure!(state.trim().ends_with("  clean"), "it was not checked: {state}");
    fixture.kubectl(&["delete", "pod", "ill"])?;
    fixture.delete_claim("ill")?;
    fixture.kubectl(&["delete", "storageclass", "strict"])?;
    fixture.check_volumes(0)
}

fn damaged(fixture: &Fixture) -> Result<()> {
    fixture.apply_claim("broken", "waiting", "64Mi")?;
    fixture.apply(&pod("broken", "broken", VolumeMode::Filesystem))?;
    fixture.wait_ready("broken")?;
    fixture.kubectl(&["delete", "pod", "broken"])?;
    let device = device_of_one();
    // The root directory is gone, and the filesystem knows that something is wrong
    fixture.node.script(&format!(
        "debugfs -w -R 'clri <2>' {device} 2>&1 && debugfs -w -R 'set_super_value state 2' {device} 2>&1"
    ))?;
    fixture.apply(&pod("broken", "broken", VolumeMode::Filesystem))?;
    let event = fixture.wait_event("broken", "FailedMount")?;
    ensure!(event.contains("damaged") && event.contains("e2fsck"), "the event says: {event}");
    fixture.kubectl(&["delete", "pod", "broken"])?;
    fixture.delete_claim("broken")?;
    fixture.check_volumes(0)
}

/// The device of the only volume, for a shell.
fn device_of_one() -> String {
    format!("/dev/{VG}/$(lvs --noheadings -o lv_name {VG} | tr -d ' ')")
}
