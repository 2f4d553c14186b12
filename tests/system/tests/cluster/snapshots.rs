//! Snapshots, restored volumes and clones with the stock csi-snapshotter and snapshot-controller.

use anyhow::{Result, ensure};
use system_tests::manifests::{DataSource, VolumeMode, claim, copied_claim, pod, snapshot};
use testbed::topolvm::{THIN_POOL, THIN_VG};

use crate::Body;
use crate::fixture::Fixture;

pub(crate) fn trials() -> Vec<(String, Body)> {
    vec![("a_snapshot_is_restored_and_a_volume_is_cloned_with_their_data".to_owned(), copies)]
}

/// From one source a snapshot, a larger volume restored from it, and a clone; then each lives without the others.
fn copies(fixture: &Fixture) -> Result<()> {
    fixture.apply(&claim("source", "thin", "256Mi", VolumeMode::Filesystem))?;
    start(fixture, "source")?;
    write(fixture, "source", "before")?;
    fixture.apply(&snapshot("snapshot", "snapshots", "source"))?;
    fixture.kubectl(&[
        "wait",
        "--for=jsonpath={.status.readyToUse}=true",
        "volumesnapshot/snapshot",
        "--timeout=60s",
    ])?;
    write(fixture, "source", "after")?;

    fixture.apply(&copied_claim("restored", "thin", "512Mi", DataSource::Snapshot("snapshot")))?;
    start(fixture, "restored")?;
    ensure!(read(fixture, "restored")? == "before", "the restored volume says {:?}", read(fixture, "restored")?);
    let mebibytes = fixture.in_pod("restored", "df -mP /data | awk 'END {print $2}'")?;
    ensure!(mebibytes.trim().parse::<u32>()? > 400, "the restored filesystem has {mebibytes} MiB");

    fixture.apply(&copied_claim("clone", "thin", "256Mi", DataSource::Claim("source")))?;
    start(fixture, "clone")?;
    ensure!(read(fixture, "clone")? == "after", "the clone says {:?}", read(fixture, "clone")?);

    stop(fixture, "source")?;
    fixture.kubectl(&["delete", "volumesnapshot", "snapshot", "--timeout=60s"])?;
    write(fixture, "clone", "mine")?;
    ensure!(read(fixture, "restored")? == "before", "the restored volume has changed");
    ensure!(read(fixture, "clone")? == "mine", "the clone did not take what was written");
    stop(fixture, "restored")?;
    stop(fixture, "clone")?;

    fixture.wait_no_volumes()?;
    let left = fixture.node.script(&format!("lvs --noheadings -o lv_name {THIN_VG}"))?;
    ensure!(left.trim() == THIN_POOL, "LVs are left: {left}");
    Ok(())
}

/// Starts a pod on the claim of its name.
fn start(fixture: &Fixture, name: &str) -> Result<()> {
    fixture.apply(&pod(name, name, VolumeMode::Filesystem))?;
    fixture.wait_ready(name)
}

/// Deletes the pod and the claim, and waits until the volume is gone.
fn stop(fixture: &Fixture, name: &str) -> Result<()> {
    fixture.kubectl(&["delete", "pod", name, "--timeout=60s"])?;
    fixture.delete_claim(name)
}

fn write(fixture: &Fixture, pod: &str, text: &str) -> Result<()> {
    fixture.in_pod(pod, &format!("echo {text} >/data/file && sync")).map(drop)
}

fn read(fixture: &Fixture, pod: &str) -> Result<String> {
    Ok(fixture.in_pod(pod, "cat /data/file")?.trim().to_owned())
}
