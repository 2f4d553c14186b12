//! Snapshots, restored volumes and clones with the stock csi-snapshotter and snapshot-controller.

use anyhow::{Result, ensure};
use system_tests::manifests::{DataSource, VolumeMode, claim, copied_claim, pod, snapshot, storage_class};
use testbed::topolvm::{THIN_CLASS, THIN_POOL, THIN_VG};
use topolvm_api::ApiFlavor;

use crate::Body;
use crate::fixture::Fixture;

pub(crate) fn trials() -> Vec<(String, Body)> {
    let all: [(&str, Body); 3] = [
        ("a_snapshot_is_restored_and_a_volume_is_cloned_with_their_data", copies),
        ("larger_copies_of_xfs_and_btrfs_volumes_are_mounted_beside_their_source", beside),
        ("what_was_fsynced_is_in_a_restored_btrfs_beside_its_source", fsynced),
    ];
    all.map(|(name, body)| (name.to_owned(), body)).into()
}

/// Creates from one source a snapshot, a larger volume restored from it, and a clone; then deletes each while the
/// others stay.
fn copies(fixture: &Fixture) -> Result<()> {
    fixture.apply(&claim("source", "thin", "256Mi", VolumeMode::Filesystem))?;
    fixture.start("source", VolumeMode::Filesystem)?;
    fixture.write("source", "before")?;
    fixture.apply(&snapshot("snapshot", "snapshots", "source"))?;
    fixture.wait_snapshot("snapshot")?;
    fixture.write("source", "after")?;

    fixture.apply(&copied_claim("restored", "thin", "512Mi", DataSource::Snapshot("snapshot")))?;
    fixture.start("restored", VolumeMode::Filesystem)?;
    ensure!(fixture.read("restored")? == "before", "the restored volume says {:?}", fixture.read("restored")?);
    let mebibytes = fixture.mebibytes("restored")?;
    ensure!(mebibytes > 400, "the restored filesystem has {mebibytes} MiB");

    fixture.apply(&copied_claim("clone", "thin", "256Mi", DataSource::Claim("source")))?;
    fixture.start("clone", VolumeMode::Filesystem)?;
    ensure!(fixture.read("clone")? == "after", "the clone says {:?}", fixture.read("clone")?);

    fixture.end("source")?;
    fixture.kubectl(&["delete", "volumesnapshot", "snapshot", "--timeout=60s"])?;
    fixture.write("clone", "mine")?;
    ensure!(fixture.read("restored")? == "before", "the restored volume has changed");
    ensure!(fixture.read("clone")? == "mine", "the clone did not take what was written");
    fixture.end("restored")?;
    fixture.end("clone")?;

    fixture.wait_no_volumes()?;
    let left = fixture.node.script(&format!("lvs --noheadings -o lv_name {THIN_VG}"))?;
    ensure!(left.trim() == THIN_POOL, "LVs are left: {left}");
    Ok(())
}

/// Mounts a filesystem and its copy, which have the same UUID: by default the kernel refuses the second.
fn beside(fixture: &Fixture) -> Result<()> {
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
        fixture.write(filesystem, "before")?;
        fixture.apply(&snapshot(filesystem, "snapshots", filesystem))?;
    }
    for filesystem in both {
        fixture.wait_snapshot(filesystem)?;
        fixture.write(filesystem, "after")?;
        let copy = format!("{filesystem}-copy");
        fixture.apply(&copied_claim(&copy, filesystem, "640Mi", DataSource::Snapshot(filesystem)))?;
        fixture.apply(&pod(&copy, &copy, VolumeMode::Filesystem))?;
    }
    for filesystem in both {
        let copy = format!("{filesystem}-copy");
        fixture.wait_ready(&copy)?;
        let texts = [fixture.read(&copy)?, fixture.read(filesystem)?];
        ensure!(texts == ["before", "after"], "{filesystem}: the copy and the source say {texts:?}");
        let sizes = [fixture.mebibytes(&copy)?, fixture.mebibytes(filesystem)?];
        ensure!(sizes[0] > sizes[1] + 200, "{filesystem}: the copy and the source have {sizes:?} MiB");
        fixture.end(&copy)?;
        fixture.kubectl(&["delete", "volumesnapshot", filesystem, "--timeout=60s"])?;
        fixture.end(filesystem)?;
        fixture.kubectl(&["delete", "storageclass", filesystem])?;
    }
    fixture.wait_no_volumes()
}

/// Snapshots a btrfs with data that only its fsync log has. fsync(2) writes to the log, and the next commit comes half
/// a minute later. The data is in the log when the node goes down in between, and in copies that are made before the
/// source is mounted again; and in all copies if the kernel does not commit for a snapshot.
fn fsynced(fixture: &Fixture) -> Result<()> {
    let mut class = storage_class(ApiFlavor::TopoLvm, "logged", Some(THIN_CLASS), false);
    class["parameters"]["csi.storage.k8s.io/fstype"] = "btrfs".into();
    fixture.apply(&class)?;
    fixture.apply_claim("logged", "logged", "320Mi")?;
    fixture.start("logged", VolumeMode::Filesystem)?;
    let id = fixture.value("pv", &fixture.volume("logged")?, ".spec.csi.volumeHandle")?;
    crash(fixture, "logged", &id)?;

    fixture.apply(&snapshot("logged", "snapshots", "logged"))?;
    fixture.wait_snapshot("logged")?;
    fixture.start("logged", VolumeMode::Filesystem)?;
    fixture.apply(&copied_claim("logged-copy", "logged", "320Mi", DataSource::Snapshot("logged")))?;
    fixture.start("logged-copy", VolumeMode::Filesystem)?;
    let texts = [fixture.read("logged-copy")?, fixture.read("logged")?];
    ensure!(texts == ["kept", "kept"], "the copy and the source say {texts:?}");
    fixture.end("logged-copy")?;
    fixture.kubectl(&["delete", "volumesnapshot", "logged", "--timeout=60s"])?;
    fixture.end("logged")?;
    fixture.kubectl(&["delete", "storageclass", "logged"])?;
    fixture.wait_no_volumes()
}

/// Deletes a pod, and leaves its btrfs as if the node had gone down right after the pod's last fsync.
fn crash(fixture: &Fixture, pod: &str, id: &str) -> Result<()> {
    const SAVED: &str = "/run/saved-btrfs";
    let device = format!("/dev/{THIN_VG}/{id}");
    let log_root = || -> Result<String> {
        // Past the cache of the device, of which a mounted filesystem knows nothing
        fixture.node.script(&format!("dd if={device} of={SAVED} bs=1M iflag=direct conv=sparse 2>/dev/null"))?;
        let superblock = fixture.node.script(&format!("btrfs inspect-internal dump-super {SAVED}"))?;
        let log_root = superblock.lines().find_map(|line| line.strip_prefix("log_root\t"));
        Ok(log_root.unwrap_or_default().trim().to_owned())
    };
    fixture.in_pod(pod, "sync")?;
    fixture.cluster.ready("apiserver", || {
        fixture.in_pod(pod, "echo kept | dd of=/data/file conv=fsync 2>/dev/null")?;
        // The next commit can come at any time, and takes the log away
        let log_root = log_root()?;
        ensure!(!["", "0"].contains(&log_root.as_str()), "there is no log: {log_root:?}");
        Ok(())
    })?;
    fixture.stop(pod)?;
    let restore = format!("dd if={SAVED} of={device} bs=1M oflag=direct conv=sparse,notrunc 2>/dev/null && rm {SAVED}");
    fixture.node.script(&restore).map(drop)
}
