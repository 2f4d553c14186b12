//! A cluster whose etcd is restored from an older backup: volumes that were created since then, and volumes that were
//! removed.

use std::convert::identity;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::Trial;
use system_tests::chart::run_command;
use system_tests::manifests::VolumeMode;
use system_tests::plugin;
use testbed::suite;
use testbed::topolvm;

use crate::fixture::{self, Fixture, VG};

/// Orphans that nothing refers to would be removed within seconds.
const FLAGS: [&str; 3] = ["--orphans=delete", "--orphan-grace-period=2s", "--quarantine-period=2s"];
const NEWER: &str = "newer than the newest known object";

pub(crate) fn tests() -> Vec<Trial> {
    let name = "etcd_restore_neither_loses_nor_creates_volumes";
    vec![suite::test(name, || fixture::with_own(identity, &FLAGS, restore_backup))]
}

fn restore_backup(fixture: &Fixture) -> Result<()> {
    make_volume(fixture, "stays")?;
    make_volume(fixture, "removed")?;
    fixture.wait_remembered("stays")?;
    fixture.wait_remembered("removed")?;
    let backup = fixture.cluster.directory().join("etcd-backup");
    fixture.cluster.restart_storage(|data| copy(data, &backup)).context("back up")?;

    make_volume(fixture, "made")?;
    fixture.wait_remembered("made")?;
    let made = lv_of(fixture, "made")?;
    let removed = fixture.volume_name("removed")?;
    fixture.delete_pod("made")?;
    fixture.delete_pod_and_claim("removed")?;
    restore(fixture, &backup)?;

    check_made(fixture, &made).context("the volume that the backup does not know")?;
    check_removed(fixture, &removed).context("the volume that only the backup knows")?;
    ensure!(fixture.read_word("stays")? == "stays", "the volume of both has changed");
    bring_back(fixture, &made)
}

/// Creates a claim and a pod that writes the name into it.
fn make_volume(fixture: &Fixture, name: &str) -> Result<()> {
    fixture.apply_claim(name, "waiting", "64Mi")?;
    fixture.start_pod(name, VolumeMode::Filesystem)?;
    fixture.write_word(name, name)
}

fn lv_of(fixture: &Fixture, claim: &str) -> Result<String> {
    fixture.value("pv", &fixture.volume_name(claim)?, ".spec.csi.volumeHandle")
}

/// Replaces etcd's data with the backup. All programs with watches are restarted, as the manual of etcd requires: they
/// would wait for later revisions.
fn restore(fixture: &Fixture, backup: &Path) -> Result<()> {
    topolvm::stop(&fixture.cluster, &fixture.nodes, &fixture.spec)?;
    fixture.cluster.restart_storage(|data| {
        std::fs::remove_dir_all(data).context("remove the data of etcd")?;
        std::fs::rename(backup, data).context("put the backup there")
    })?;
    fixture.cluster.restart_controllers()?;
    fixture.node.kill_kept("kubelet")?;
    topolvm::start(&fixture.cluster, &fixture.nodes, &fixture.spec)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    #[expect(clippy::disallowed_methods, reason = "a program of this machine")]
    let copied = run_command(Command::new("cp").arg("-a").args([from, to]));
    copied.map(drop)
}

/// Checks that the LV is reported with the reason why it is kept.
fn check_made(fixture: &Fixture, lv: &str) -> Result<()> {
    fixture.cluster.ready("apiserver", || {
        let listed = plugin::json(&fixture.cluster, &["orphans", "list"])?;
        let orphans = listed["items"].as_array().context("no list")?;
        let orphan = orphans.iter().find(|orphan| orphan["lv"] == lv).context("the LV is not listed")?;
        ensure!(orphan["note"].as_str().is_some_and(|note| note.contains(NEWER)), "{orphan}");
        Ok(())
    })
}

/// Checks that the object gets no new, empty LV, that it is reported as lost, and that it is deleted with its claim.
fn check_removed(fixture: &Fixture, volume: &str) -> Result<()> {
    fixture.wait_event(volume, "VolumeLost")?;
    let report = plugin::json(&fixture.cluster, &["doctor"])?;
    let found = format!("the LV of LogicalVolume {volume} does not exist");
    ensure!(report.to_string().contains(&found), "doctor does not report it: {report}");
    let lvs = fixture.node.script(&format!("lvs --noheadings -o lv_name {VG}"))?;
    ensure!(lvs.split_whitespace().count() == 2, "{lvs}");
    fixture.kubectl(&["delete", "pod/removed", "--ignore-not-found", "--timeout=180s"])?;
    fixture.delete_claim("removed")
}

/// A new claim has the data of the forgotten volume; then no LV is without an object.
fn bring_back(fixture: &Fixture, lv: &str) -> Result<()> {
    let node = fixture.node.name();
    let arguments = ["orphans", "restore", node, lv, "--claim=made", "--storage-class=waiting"];
    plugin::run_successfully(&fixture.cluster, &arguments)?;
    fixture.wait_bound("made")?;
    fixture.start_pod("made", VolumeMode::Filesystem)?;
    ensure!(fixture.read_word("made")? == "made", "the data has changed");
    fixture.check_volumes(2)
}
