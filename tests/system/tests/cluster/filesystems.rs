//! Filesystems other than the default, and damaged ones.

use anyhow::{Result, ensure};
use system_tests::manifests::{VolumeMode, pod, storage_class};
use topolvm_api::ApiFlavor;

use crate::Body;
use crate::fixture::{Fixture, VG, logical_volume_resource};

pub(crate) fn tests() -> Vec<(String, Body)> {
    let all: [(&str, Body); 7] = [
        ("xfs_volume_has_mount_options_and_keeps_data_on_resize", |fixture| {
            expand_filesystem(fixture, "xfs", ["320Mi", "640Mi", "960Mi"])
        }),
        ("btrfs_volume_has_mount_options_and_keeps_data_on_resize", |fixture| {
            expand_filesystem(fixture, "btrfs", ["256Mi", "512Mi", "768Mi"])
        }),
        ("smallest_volume_of_each_filesystem_is_writable", use_smallest_volumes),
        ("stopped_filesystem_is_a_condition_and_is_repaired", stop_filesystem),
        ("frozen_filesystem_is_thawed_when_its_pod_ends", thaw_filesystem),
        ("damaged_filesystem_is_not_mounted_and_event_names_e2fsck", damage_filesystem),
        ("lost_filesystem_is_reformatted_only_on_request", lose_filesystem),
    ];
    all.map(|(name, body)| (name.to_owned(), body)).into()
}

/// Filesystem label in the mkfs options of the tests' classes; ext4, xfs and btrfs share the option `-L`.
const LABEL: &str = "from-class";

/// Applies a StorageClass for this filesystem with a label and one mount option.
fn apply_class(fixture: &Fixture, name: &str, filesystem: &str, option: &str) -> Result<()> {
    let mut class = storage_class(ApiFlavor::TopoLvm, name, None, false);
    class["mountOptions"] = vec![option].into();
    class["parameters"]["csi.storage.k8s.io/fstype"] = filesystem.into();
    class["parameters"][ApiFlavor::TopoLvm.mkfs_options_parameter()] = format!("-L {LABEL}").into();
    fixture.apply(&class)
}

/// Expands a volume while a pod uses it, and while none does.
fn expand_filesystem(fixture: &Fixture, filesystem: &str, [small, large, largest]: [&str; 3]) -> Result<()> {
    apply_class(fixture, filesystem, filesystem, "noatime")?;
    fixture.apply_claim("fs", filesystem, small)?;
    fixture.start_pod("fs", VolumeMode::Filesystem)?;
    check_mount(fixture, "fs", filesystem, "noatime")?;
    check_label(fixture)?;
    wait_for_discard(fixture)?;
    fixture.write_word("fs", "kept")?;
    let before = fixture.filesystem_mebibytes("fs")?;
    fixture.request_size("fs", large)?;
    let condition = format!("--for=jsonpath={{.status.capacity.storage}}={large}");
    fixture.kubectl(&["wait", &condition, "persistentvolumeclaim/fs", "--timeout=180s"])?;
    let after = fixture.filesystem_mebibytes("fs")?;
    ensure!(after > before + 200, "df shows {before} MiB before and {after} MiB after");
    fixture.delete_pod("fs")?;
    fixture.expand("fs", largest)?;
    fixture.start_pod("fs", VolumeMode::Filesystem)?;
    ensure!(fixture.read_word("fs")? == "kept", "the file did not survive");
    let offline = fixture.filesystem_mebibytes("fs")?;
    ensure!(offline > after + 200, "df shows {after} MiB before growing without a pod and {offline} MiB after");
    fixture.delete_pod_and_claim("fs")?;
    fixture.kubectl(&["delete", "storageclass", filesystem])?;
    fixture.check_volumes(0)
}

/// Requests one byte: the controller raises it to the minimum of the filesystem.
fn use_smallest_volumes(fixture: &Fixture) -> Result<()> {
    let all = [("xfs", 300), ("btrfs", 200), ("ext4", 32)];
    for (filesystem, _) in all {
        let name = format!("least-{filesystem}");
        apply_class(fixture, &name, filesystem, "noatime")?;
        fixture.apply_claim(&name, &name, "1")?;
        fixture.apply(&pod(&name, &name, VolumeMode::Filesystem))?;
    }
    for (filesystem, mebibytes) in all {
        let name = format!("least-{filesystem}");
        fixture.wait_ready(&name)?;
        check_mount(fixture, &name, filesystem, "noatime")?;
        fixture.wait_value("pvc", &name, ".status.capacity.storage", &format!("{mebibytes}Mi"))?;
        let id = fixture.value("pv", &fixture.volume_name(&name)?, ".spec.csi.volumeHandle")?;
        let size = fixture.node.script(&format!("lvs --noheadings --nosuffix --units m -o lv_size {VG}/{id}"))?;
        ensure!(size.trim() == format!("{mebibytes}.00"), "the LV for {filesystem} has {size} MiB");
        fixture.exec_in_pod(&name, "dd if=/dev/urandom of=/data/file bs=1M count=16 conv=fsync 2>/dev/null")?;
        let sum = || fixture.exec_in_pod(&name, "md5sum /data/file");
        let written = sum()?;
        fixture.delete_pod(&name)?;
        fixture.start_pod(&name, VolumeMode::Filesystem)?;
        ensure!(sum()? == written, "{filesystem} has lost what was written to it");
        if filesystem == "btrfs" {
            slightly_larger(fixture, &name)?;
        }
        fixture.delete_pod_and_claim(&name)?;
        fixture.kubectl(&["delete", "storageclass", &name])?;
    }
    fixture.check_volumes(0)
}

/// Expands a Btrfs to less than 256 MiB, which the kernel refuses. Its volume can be used all the same, and all of it
/// when it has as much.
fn slightly_larger(fixture: &Fixture, name: &str) -> Result<()> {
    let grow = |size: &str| {
        fixture.request_size(name, size)?;
        fixture.wait_value("pvc", name, ".status.capacity.storage", size)
    };
    grow("240Mi")?;
    fixture.delete_pod(name)?;
    fixture.start_pod(name, VolumeMode::Filesystem)?;
    let before = fixture.filesystem_mebibytes(name)?;
    ensure!(before <= 200, "the kernel grows a Btrfs to {before} MiB: the agent need not leave it as it is");
    grow("256Mi")?;
    let after = fixture.filesystem_mebibytes(name)?;
    ensure!(after == 256, "df shows {after} MiB where 256 are");
    Ok(())
}

/// Checks filesystem and option of the mount that the pod sees.
fn check_mount(fixture: &Fixture, pod: &str, filesystem: &str, option: &str) -> Result<()> {
    let mount = fixture.exec_in_pod(pod, "grep ' /data ' /proc/mounts")?;
    let mut fields = mount.split(' ').skip(2);
    ensure!(fields.next() == Some(filesystem), "mounted is: {mount}");
    ensure!(fields.next().is_some_and(|options| options.split(',').any(|it| it == option)), "mounted is: {mount}");
    Ok(())
}

fn check_label(fixture: &Fixture) -> Result<()> {
    let label = fixture.node.script(&format!("blkid -p -s LABEL -o value {}", only_device()))?;
    ensure!(label.trim() == LABEL, "the filesystem is called {label:?}");
    Ok(())
}

/// Waits until blocks of the only volume's device have been discarded, which an option of mkfs disables: field 12 of
/// the kernel's Documentation/block/stat.rst.
fn wait_for_discard(fixture: &Fixture) -> Result<()> {
    let script = format!(
        "stat=/sys/dev/block/$(stat -L -c %Hr:%Lr {})/stat; end=$(( SECONDS + 60 )); \
         until awk '{{exit $12 == 0}}' $stat; do (( SECONDS < end )); sleep 0.2; done",
        only_device()
    );
    fixture.node.script(&script).map(drop)
}

/// Freezes a filesystem as a backup tool does that ends before it thaws.
fn thaw_filesystem(fixture: &Fixture) -> Result<()> {
    apply_class(fixture, "iced", "xfs", "noatime")?;
    fixture.apply_claim("iced", "iced", "320Mi")?;
    fixture.start_pod("iced", VolumeMode::Filesystem)?;
    fixture.write_word("iced", "kept")?;
    fixture.node.script("fsfreeze --freeze $(findmnt -rno TARGET | grep -m1 'kubernetes.io~csi.*/mount$')")?;
    fixture.delete_pod("iced")?;
    let event = fixture.wait_event(&fixture.volume_name("iced")?, "FilesystemThawed")?;
    ensure!(event.contains("before it was unmounted"), "{event}");
    fixture.start_pod("iced", VolumeMode::Filesystem)?;
    ensure!(fixture.read_word("iced")? == "kept", "the file did not survive");
    fixture.write_word("iced", "written")?;
    fixture.delete_pod_and_claim("iced")?;
    fixture.kubectl(&["delete", "storageclass", "iced"])?;
    fixture.check_volumes(0)
}

fn stop_filesystem(fixture: &Fixture) -> Result<()> {
    apply_class(fixture, "strict", "ext4", "errors=remount-ro")?;
    fixture.apply_claim("ill", "strict", "64Mi")?;
    fixture.start_pod("ill", VolumeMode::Filesystem)?;
    check_mount(fixture, "ill", "ext4", "errors=remount-ro")?;
    check_label(fixture)?;
    fixture.write_word("ill", "kept")?;
    fixture.node.script("for trigger in /sys/fs/ext4/dm-*/trigger_fs_error; do echo test >$trigger; done")?;
    fixture.wait_condition("ill", "FilesystemReadOnly", "read-only")?;
    fixture.kubectl(&["delete", "pod", "ill"])?;
    fixture.apply(&pod("ill", "ill", VolumeMode::Filesystem))?;
    fixture.wait_ready("ill")?;
    let text = fixture.exec_in_pod("ill", "cat /data/file && echo new >/data/file")?;
    ensure!(text == "kept\n", "read {text:?}");
    let state = fixture.node.script(&format!("dumpe2fs -h {} 2>/dev/null | grep 'Filesystem state'", only_device()))?;
    ensure!(state.trim().ends_with("  clean"), "it was not checked: {state}");
    fixture.kubectl(&["delete", "pod", "ill"])?;
    fixture.delete_claim("ill")?;
    fixture.kubectl(&["delete", "storageclass", "strict"])?;
    fixture.check_volumes(0)
}

fn damage_filesystem(fixture: &Fixture) -> Result<()> {
    fixture.apply_claim("broken", "waiting", "64Mi")?;
    fixture.apply(&pod("broken", "broken", VolumeMode::Filesystem))?;
    fixture.wait_ready("broken")?;
    fixture.kubectl(&["delete", "pod", "broken"])?;
    let device = only_device();
    // The root directory is cleared, and the filesystem is marked as having errors
    fixture.node.script(&format!(
        "debugfs -w -R 'clri <2>' {device} 2>&1 && debugfs -w -R 'set_super_value state 2' {device} 2>&1"
    ))?;
    fixture.apply(&pod("broken", "broken", VolumeMode::Filesystem))?;
    let event = fixture.wait_event_with("broken", "FailedMount", "damaged")?;
    ensure!(event.contains("e2fsck"), "the event says: {event}");
    fixture.kubectl(&["delete", "pod", "broken"])?;
    fixture.delete_claim("broken")?;
    fixture.check_volumes(0)
}

/// Loses a filesystem that is recovered once, and once reformatted.
fn lose_filesystem(fixture: &Fixture) -> Result<()> {
    fixture.apply_claim("lost", "waiting", "64Mi")?;
    fixture.start_pod("lost", VolumeMode::Filesystem)?;
    fixture.write_word("lost", "precious")?;
    let (group, volume) = (logical_volume_resource(ApiFlavor::TopoLvm), fixture.volume_name("lost")?);
    let annotation = |name: &str| fixture.value(&group, &volume, &format!(".metadata.annotations.topolvm\\.io/{name}"));
    ensure!(annotation("filesystem")? == "ext4", "the volume has no record");
    lose_superblock(fixture, "lost")?;

    fixture.apply(&pod("lost", "lost", VolumeMode::Filesystem))?;
    let event = fixture.wait_event_with("lost", "FailedMount", "was formatted with ext4")?;
    let reformat = format!("kubectl annotate {group} {volume} topolvm.io/reformat=ext4");
    ensure!(event.contains("e2fsck -b") && event.contains(&reformat), "the event says: {event}");
    let event = fixture.wait_event(&volume, "FilesystemMissing")?;
    ensure!(event.contains("e2fsck -b") && event.contains(&reformat), "the event of the volume says: {event}");
    ensure!(fixture.value("pod", "lost", ".status.phase")? == "Pending", "the pod runs without its data");
    // e2fsck(8): 1 is "errors corrected"
    fixture.node.script(&format!("e2fsck -fy -b 8193 -B 1024 {} >&2 || [ $? = 1 ]", only_device()))?;
    fixture.wait_ready("lost")?;
    ensure!(fixture.read_word("lost")? == "precious", "the file did not survive");

    lose_superblock(fixture, "lost")?;
    fixture.apply(&pod("lost", "lost", VolumeMode::Filesystem))?;
    fixture.wait_event_with("lost", "FailedMount", "was formatted with ext4")?;
    let words: Vec<&str> = reformat.split(' ').skip(1).collect();
    fixture.kubectl(&words)?;
    fixture.wait_ready("lost")?;
    let files = fixture.exec_in_pod("lost", "ls /data")?;
    ensure!(files.trim() == "lost+found", "found in a new filesystem: {files}");
    ensure!(annotation("filesystem")? == "ext4" && annotation("reformat")?.is_empty(), "the request is still there");
    fixture.delete_pod_and_claim("lost")?;
    fixture.check_volumes(0)
}

/// Deletes a pod and zeroes the superblock of its ext4.
fn lose_superblock(fixture: &Fixture, pod: &str) -> Result<()> {
    fixture.delete_pod(pod)?;
    let zero = format!("dd if=/dev/zero of={} bs=4k count=1 conv=fsync 2>/dev/null", only_device());
    fixture.node.script(&zero).map(drop)
}

/// Returns the path of the only volume's device, for a shell.
fn only_device() -> String {
    format!("/dev/{VG}/$(lvs --noheadings -o lv_name {VG} | tr -d ' ')")
}
