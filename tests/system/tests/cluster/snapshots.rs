//! Snapshots, restored volumes and clones with the stock csi-snapshotter and snapshot-controller.

use anyhow::{Result, ensure};
use system_tests::manifests::{DataSource, VolumeMode, claim, copied_claim, pod, snapshot, storage_class};
use testbed::suite;
use testbed::topolvm::{THIN_CLASS, THIN_POOL, THIN_VG};
use topolvm_api::ApiFlavor;

use crate::Body;
use crate::fixture::Fixture;

pub(crate) fn tests() -> Vec<(String, Body)> {
    let all: [(&str, Body); 4] = [
        ("snapshot_restore_and_clone_have_the_data_of_the_source", create_copies),
        ("copies_may_request_what_the_claim_of_their_source_requests", copy_at_requested_size),
        ("larger_xfs_and_btrfs_copies_mount_next_to_their_source", mount_next_to_source),
        ("restored_btrfs_has_fsynced_data_next_to_its_source", snapshot_fsynced_data),
    ];
    all.map(|(name, body)| (name.to_owned(), body)).into()
}

/// Creates from one source a snapshot, a larger volume restored from it, and a clone; then deletes each while the
/// others stay.
fn create_copies(fixture: &Fixture) -> Result<()> {
    fixture.apply(&claim("source", "thin", "256Mi", VolumeMode::Filesystem))?;
    fixture.start_pod("source", VolumeMode::Filesystem)?;
    fixture.write_word("source", "before")?;
    fixture.apply(&snapshot("snapshot", "snapshots", "source"))?;
    fixture.wait_snapshot("snapshot")?;
    fixture.write_word("source", "after")?;

    fixture.apply(&copied_claim("restored", "thin", "512Mi", DataSource::Snapshot("snapshot")))?;
    fixture.start_pod("restored", VolumeMode::Filesystem)?;
    ensure!(
        fixture.read_word("restored")? == "before",
        "the restored volume says {:?}",
        fixture.read_word("restored")?
    );
    let mebibytes = fixture.filesystem_mebibytes("restored")?;
    ensure!(mebibytes > 400, "the restored filesystem has {mebibytes} MiB");

    fixture.apply(&copied_claim("clone", "thin", "256Mi", DataSource::Claim("source")))?;
    fixture.start_pod("clone", VolumeMode::Filesystem)?;
    ensure!(fixture.read_word("clone")? == "after", "the clone says {:?}", fixture.read_word("clone")?);

    fixture.delete_pod_and_claim("source")?;
    fixture.kubectl(&["delete", "volumesnapshot", "snapshot", "--timeout=180s"])?;
    fixture.write_word("clone", "mine")?;
    ensure!(fixture.read_word("restored")? == "before", "the restored volume has changed");
    ensure!(fixture.read_word("clone")? == "mine", "the clone did not take what was written");
    fixture.delete_pod_and_claim("restored")?;
    fixture.delete_pod_and_claim("clone")?;

    fixture.wait_no_volumes()?;
    let left = fixture.node.script(&format!("lvs --noheadings -o lv_name {THIN_VG}"))?;
    ensure!(left.trim() == THIN_POOL, "LVs are left: {left}");
    Ok(())
}

/// Restores and clones volumes whose size was rounded up to a sector, to LVM's extents, or to the minimum of the
/// filesystem, with claims of the same size; external-provisioner compares these before it calls the driver. A copy
/// with another filesystem is refused. The soak does it with all of the sizes.
fn copy_at_requested_size(fixture: &Fixture) -> Result<()> {
    let all = [
        ("m50", "50Mi", "ext4"),
        ("tenth", "0.1Gi", "btrfs"),
        ("m128", "128Mi", "xfs"),
        ("d100", "100M", "ext4"),
        ("m10", "10Mi", "ext4"),
        ("m64", "64Mi", "ext4"),
    ];
    let sources: Vec<_> = all.into_iter().take(if suite::is_soak() { all.len() } else { 3 }).collect();
    let classes = ["ext4", "xfs", "btrfs"];
    for filesystem in classes {
        let mut class = storage_class(ApiFlavor::TopoLvm, filesystem, Some(THIN_CLASS), false);
        class["parameters"]["csi.storage.k8s.io/fstype"] = filesystem.into();
        class["volumeBindingMode"] = "Immediate".into();
        fixture.apply(&class)?;
    }
    for &(name, size, filesystem) in &sources {
        fixture.apply_claim(name, filesystem, size)?;
        fixture.apply(&pod(name, name, VolumeMode::Filesystem))?;
    }
    for &(name, _, _) in &sources {
        fixture.wait_ready(name)?;
        fixture.write_word(name, name)?;
        fixture.apply(&snapshot(name, "snapshots", name))?;
    }
    for &(name, size, filesystem) in &sources {
        fixture.wait_snapshot(name)?;
        let [restored, clone] = copies(name);
        fixture.apply(&copied_claim(&restored, filesystem, size, DataSource::Snapshot(name)))?;
        fixture.apply(&copied_claim(&clone, filesystem, size, DataSource::Claim(name)))?;
    }
    fixture.apply(&copied_claim("other", "xfs", "512Mi", DataSource::Claim("m50")))?;
    fixture.wait_event_with("other", "ProvisioningFailed", "has the filesystem ext4")?;
    fixture.kubectl(&["delete", "pvc", "other", "--timeout=180s"])?;
    for &(name, _, _) in &sources {
        for copy in copies(name) {
            fixture.wait_bound(&copy)?;
            fixture.start_pod(&copy, VolumeMode::Filesystem)?;
            ensure!(fixture.read_word(&copy)? == name, "{copy} says {:?}", fixture.read_word(&copy)?);
            fixture.delete_pod_and_claim(&copy)?;
        }
    }
    for &(name, _, _) in &sources {
        fixture.kubectl(&["delete", "volumesnapshot", name, "--timeout=180s"])?;
        fixture.delete_pod_and_claim(name)?;
    }
    for filesystem in classes {
        fixture.kubectl(&["delete", "storageclass", filesystem])?;
    }
    fixture.wait_no_volumes()
}

/// Returns the names of the copies of a source.
fn copies(source: &str) -> [String; 2] {
    ["restored", "clone"].map(|kind| format!("{source}-{kind}"))
}

/// Mounts a filesystem and its copy, which have the same UUID: by default the kernel refuses the second.
fn mount_next_to_source(fixture: &Fixture) -> Result<()> {
    let both = ["xfs", "btrfs"];
    for filesystem in both {
        let mut class = storage_class(ApiFlavor::TopoLvm, filesystem, Some(THIN_CLASS), false);
        class["parameters"]["csi.storage.k8s.io/fstype"] = filesystem.into();
        fixture.apply(&class)?;
        fixture.apply_claim(filesystem, filesystem, "320Mi")?;
        fixture.apply(&pod(filesystem, filesystem, VolumeMode::Filesystem))?;
    }
    for filesystem in both {
        fixture.wait_ready(filesystem)?;
        fixture.write_word(filesystem, "before")?;
        fixture.apply(&snapshot(filesystem, "snapshots", filesystem))?;
    }
    for filesystem in both {
        fixture.wait_snapshot(filesystem)?;
        fixture.write_word(filesystem, "after")?;
        let copy = format!("{filesystem}-copy");
        fixture.apply(&copied_claim(&copy, filesystem, "640Mi", DataSource::Snapshot(filesystem)))?;
        fixture.apply(&pod(&copy, &copy, VolumeMode::Filesystem))?;
    }
    for filesystem in both {
        let copy = format!("{filesystem}-copy");
        fixture.wait_ready(&copy)?;
        let texts = [fixture.read_word(&copy)?, fixture.read_word(filesystem)?];
        ensure!(texts == ["before", "after"], "{filesystem}: the copy and the source say {texts:?}");
        let sizes = [fixture.filesystem_mebibytes(&copy)?, fixture.filesystem_mebibytes(filesystem)?];
        ensure!(sizes[0] > sizes[1] + 200, "{filesystem}: the copy and the source have {sizes:?} MiB");
        fixture.delete_pod_and_claim(&copy)?;
        fixture.kubectl(&["delete", "volumesnapshot", filesystem, "--timeout=180s"])?;
        fixture.delete_pod_and_claim(filesystem)?;
        fixture.kubectl(&["delete", "storageclass", filesystem])?;
    }
    fixture.wait_no_volumes()
}

/// Snapshots a btrfs with data that is only in its fsync log. fsync(2) writes to the log, and the next commit comes
/// half a minute later. The data is in the log when the node goes down in between, and in copies that are made before
/// the source is mounted again; and in all copies if the kernel does not commit for a snapshot.
fn snapshot_fsynced_data(fixture: &Fixture) -> Result<()> {
    let mut class = storage_class(ApiFlavor::TopoLvm, "logged", Some(THIN_CLASS), false);
    class["parameters"]["csi.storage.k8s.io/fstype"] = "btrfs".into();
    fixture.apply(&class)?;
    fixture.apply_claim("logged", "logged", "320Mi")?;
    fixture.start_pod("logged", VolumeMode::Filesystem)?;
    let id = fixture.value("pv", &fixture.volume_name("logged")?, ".spec.csi.volumeHandle")?;
    crash_after_fsync(fixture, "logged", &id)?;

    fixture.apply(&snapshot("logged", "snapshots", "logged"))?;
    fixture.wait_snapshot("logged")?;
    fixture.start_pod("logged", VolumeMode::Filesystem)?;
    fixture.apply(&copied_claim("logged-copy", "logged", "320Mi", DataSource::Snapshot("logged")))?;
    fixture.start_pod("logged-copy", VolumeMode::Filesystem)?;
    let texts = [fixture.read_word("logged-copy")?, fixture.read_word("logged")?];
    ensure!(texts == ["kept", "kept"], "the copy and the source say {texts:?}");
    fixture.delete_pod_and_claim("logged-copy")?;
    fixture.kubectl(&["delete", "volumesnapshot", "logged", "--timeout=180s"])?;
    fixture.delete_pod_and_claim("logged")?;
    fixture.kubectl(&["delete", "storageclass", "logged"])?;
    fixture.wait_no_volumes()
}

/// Deletes a pod, and leaves its btrfs as if the node had gone down right after the pod's last fsync.
fn crash_after_fsync(fixture: &Fixture, pod: &str, id: &str) -> Result<()> {
    const SAVED: &str = "/run/saved-btrfs";
    let device = format!("/dev/{THIN_VG}/{id}");
    let log_root = || -> Result<String> {
        // Bypass the cache of the device, which a mounted filesystem does not use
        fixture.node.script(&format!("dd if={device} of={SAVED} bs=1M iflag=direct conv=sparse 2>/dev/null"))?;
        let superblock = fixture.node.script(&format!("btrfs inspect-internal dump-super {SAVED}"))?;
        let log_root = superblock.lines().find_map(|line| line.strip_prefix("log_root\t"));
        Ok(log_root.unwrap_or_default().trim().to_owned())
    };
    fixture.exec_in_pod(pod, "sync")?;
    fixture.cluster.ready("apiserver", || {
        fixture.exec_in_pod(pod, "echo kept | dd of=/data/file conv=fsync 2>/dev/null")?;
        // The next commit can come at any time, and takes the log away
        let log_root = log_root()?;
        ensure!(!["", "0"].contains(&log_root.as_str()), "there is no log: {log_root:?}");
        Ok(())
    })?;
    fixture.delete_pod(pod)?;
    let restore = format!("dd if={SAVED} of={device} bs=1M oflag=direct conv=sparse,notrunc 2>/dev/null && rm {SAVED}");
    fixture.node.script(&restore).map(drop)
}
