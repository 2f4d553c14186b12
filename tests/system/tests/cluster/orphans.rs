//! LVs whose LogicalVolume was deleted by force: reported, kept in quarantine, restored with their data.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use system_tests::manifests::VolumeMode;
use system_tests::plugin;

use crate::Body;
use crate::fixture::{Fixture, VG};

pub(crate) fn tests() -> Vec<(String, Body)> {
    let all: [(&str, Body); 1] = [("orphan_of_a_force_deleted_object_is_restored_to_a_new_claim", lose_and_restore)];
    all.map(|(name, body)| (name.to_owned(), body)).into()
}

pub(crate) const OBJECTS: &str = "logicalvolumes.topolvm.io";
const PREFIX: &str = "topolvm.quarantine.";

fn lose_and_restore(fixture: &Fixture) -> Result<()> {
    let mut spec = fixture.spec.clone();
    spec.node_arguments.extend(["--orphans=quarantine", "--orphan-grace-period=5s"].map(str::to_owned));
    fixture.run_with_spec(
        &spec,
        || Ok(()),
        || {
            // A node without any other volume would not be trusted
            fixture.apply_claim("stays", "immediate", "64Mi")?;
            fixture.wait_bound("stays")?;
            fixture.apply_claim("lost", "waiting", "64Mi")?;
            fixture.start_pod("lost", VolumeMode::Filesystem)?;
            fixture.write_word("lost", "precious")?;
            let lv = lose(fixture)?;
            restore(fixture, &lv)?;
            refuse_to_destroy_restored(fixture, &lv)?;
            let volume = fixture.volume_name("back")?;
            let policy = json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}}).to_string();
            fixture.kubectl(&["patch", "persistentvolume", &volume, "-p", &policy])?;
            fixture.delete_pod_and_claim("back")?;
            delete_by_plugin(fixture)
        },
    )?;
    fixture.check_volumes(0)
}

/// Takes the LogicalVolume of a claim away by force, and the claim with its PersistentVolume after that. Returns the
/// name of the LV in quarantine.
fn lose(fixture: &Fixture) -> Result<String> {
    fixture.wait_remembered("lost")?;
    let volume = fixture.volume_name("lost")?;
    let id = fixture.value("pv", &volume, ".spec.csi.volumeHandle")?;
    take_object_away(fixture, &volume)?;
    // While a pod writes to it, and as long as it has a PersistentVolume, it is not changed
    wait_orphan(fixture, &id, &format!("PersistentVolume {volume} still exists"))?;
    let message = fixture.wait_event(fixture.node.name(), "OrphanedVolumes")?;
    ensure!(message.contains(&id), "{message}");
    let report = plugin::json(&fixture.cluster, &["doctor"])?.to_string();
    let command = format!("kubectl topolvm undelete {volume}");
    ensure!(report.contains(&command), "doctor does not report it: {report}");
    ensure!(fixture.read_word("lost")? == "precious", "the pod has lost its volume");

    fixture.delete_pod("lost")?;
    fixture.kubectl(&["delete", "persistentvolumeclaim", "lost", "--timeout=180s"])?;
    fixture.kubectl(&["wait", "--for=delete", &format!("persistentvolume/{volume}"), "--timeout=180s"])?;
    fixture.wait_event(fixture.node.name(), "VolumeQuarantined")?;
    let kept = format!("{PREFIX}{id}");
    wait_orphan(fixture, &kept, "in quarantine until an administrator")?;
    let lvs = fixture.node.script(&format!("lvs --noheadings -o lv_name,lv_tags {VG}"))?;
    ensure!(lvs.contains(&kept) && lvs.contains("topolvm.io/quarantined="), "{lvs}");
    Ok(kept)
}

/// Brings the LV back under a new claim.
fn restore(fixture: &Fixture, lv: &str) -> Result<()> {
    let node = fixture.node.name().to_owned();
    let arguments = ["orphans", "restore", &node, lv, "--claim=back", "--storage-class=waiting"];
    for _ in 0..2 {
        plugin::run_successfully(&fixture.cluster, &arguments)?;
    }
    fixture.wait_bound("back")?;
    fixture.start_pod("back", VolumeMode::Filesystem)?;
    ensure!(fixture.read_word("back")? == "precious", "the data has changed");
    fixture.expand("back", "128Mi")?;
    fixture.wait_value("pvc", "back", ".status.capacity.storage", "128Mi")?;
    fixture.check_volumes(2)?;
    let none = orphans(fixture)?;
    ensure!(none.is_empty(), "{none:?}");
    Ok(())
}

/// Repeats the restore after a growth was refused, and deletes the LV by an older list: the volume stays as it is.
fn refuse_to_destroy_restored(fixture: &Fixture, lv: &str) -> Result<()> {
    let (node, volume) = (fixture.node.name(), fixture.volume_name("back")?);
    let object = format!("{OBJECTS}/{volume}");
    fixture.request_size("back", "100Gi")?;
    let refused = "--for=jsonpath={.status.conditions[0].reason}=ExpandFailed";
    fixture.kubectl(&["wait", refused, &object, "--timeout=180s"])?;
    let again = ["orphans", "restore", node, lv, "--claim=back", "--storage-class=waiting"];
    plugin::run_successfully(&fixture.cluster, &again)?;
    let former = lv.trim_start_matches(PREFIX);
    for lv in [lv, former] {
        let delete = ["orphans", "delete", node, lv, "--yes"];
        let answer = plugin::run(&fixture.cluster, &fixture.cluster.inner_kubeconfig(), &delete)?;
        let owner = format!("LogicalVolume {volume}, PersistentVolume {volume}, claim default/back uses it");
        ensure!(!answer.is_success && answer.errors.contains(&owner), "{answer:?}");
    }
    let deleted = fixture.kubectl(&["get", &object, "-o", "jsonpath={.metadata.deletionTimestamp}"])?;
    ensure!(deleted.is_empty(), "the LogicalVolume is deleted since {deleted}");
    let adopted = fixture.kubectl(&["get", &object, "-o", r"jsonpath={.metadata.annotations.topolvm\.io/adopt}"])?;
    ensure!(adopted.is_empty(), "the object asks for {adopted} still");
    fixture.delete_pod("back")?;
    fixture.start_pod("back", VolumeMode::Filesystem)?;
    ensure!(fixture.read_word("back")? == "precious", "the data has changed");
    Ok(())
}

/// Removes the object of the other volume, as after a restore of an API server without it, and then has the plugin
/// delete the LV.
fn delete_by_plugin(fixture: &Fixture) -> Result<()> {
    fixture.apply_claim("last", "immediate", "64Mi")?;
    fixture.wait_bound("last")?;
    fixture.wait_remembered("last")?;
    let volume = fixture.volume_name("stays")?;
    let id = fixture.value("pv", &volume, ".spec.csi.volumeHandle")?;
    let before = "topolvm.io/volumes-until=2020-01-01T00:00:00Z";
    fixture.kubectl(&["annotate", "node", fixture.node.name(), "--overwrite", before])?;
    take_object_away(fixture, &volume)?;
    fixture.kubectl(&["delete", "persistentvolumeclaim", "stays", "--timeout=180s"])?;
    fixture.kubectl(&["wait", "--for=delete", &format!("persistentvolume/{volume}"), "--timeout=180s"])?;
    wait_orphan(fixture, &id, "newer than the newest known object")?;
    let arguments = ["orphans", "delete", fixture.node.name(), &id, "--yes"];
    plugin::run_successfully(&fixture.cluster, &arguments)?;
    fixture.delete_claim("last")?;
    fixture.wait_no_volumes()
}

/// Takes the finalizer off by hand and deletes the object while the agent hangs.
pub(crate) fn take_object_away(fixture: &Fixture, volume: &str) -> Result<()> {
    fixture.node.script("kill -STOP $(pidof topolvm-node)")?;
    let object = format!("{OBJECTS}/{volume}");
    let taken = fixture
        .kubectl(&["patch", &object, "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#])
        .and_then(|_| fixture.kubectl(&["delete", &object, "--force", "--grace-period=0"]));
    fixture.node.script("kill -CONT $(pidof topolvm-node)")?;
    taken.map(drop)
}

/// Waits until the agent reports this about an LV.
pub(crate) fn wait_orphan(fixture: &Fixture, lv: &str, note: &str) -> Result<()> {
    fixture.cluster.ready("apiserver", || {
        let orphans = orphans(fixture)?;
        let orphan = orphans.iter().find(|orphan| orphan["lv"] == lv).context("the LV is not listed")?;
        ensure!(orphan["note"].as_str().is_some_and(|reported| reported.contains(note)), "{orphan}");
        Ok(())
    })
}

fn orphans(fixture: &Fixture) -> Result<Vec<Value>> {
    let listed = plugin::json(&fixture.cluster, &["orphans", "list"])?;
    Ok(listed["items"].as_array().context("no list")?.clone())
}
