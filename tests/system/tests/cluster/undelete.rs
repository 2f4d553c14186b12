//! LogicalVolumes that are deleted by hand, with their CRD, or with a Node that is registered again: the data stays as
//! long as a PersistentVolume refers to it, and can be used again.

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::Trial;
use serde_json::json;
use system_tests::commands::Commands;
use system_tests::manifests::{VolumeMode, claim, pod};
use system_tests::plugin;
use testbed::suite;
use testbed::topolvm::{self, NODE};

use crate::fixture::{self, Fixture, VG};
use crate::orphans::OBJECTS;

/// Claims of the test: the pod of the first is stopped during the deletion.
const CLAIMS: [&str; 2] = ["asleep", "awake"];
const DEFINITION: &str = "crd/logicalvolumes.topolvm.io";

pub(crate) fn tests() -> Vec<Trial> {
    let name = "deletion_of_objects_crd_or_node_keeps_data_of_volumes";
    vec![suite::test(name, || fixture::with_own(&[], lose_objects))]
}

fn lose_objects(fixture: &Fixture) -> Result<()> {
    for name in CLAIMS {
        fixture.apply_claim(name, "waiting", "64Mi")?;
        fixture.start_pod(name, VolumeMode::Filesystem)?;
        fixture.write_word(name, name)?;
    }
    fixture.delete_pod("asleep")?;
    delete_objects(fixture).context("all objects")?;
    delete_definition(fixture).context("the definition")?;
    replace_node(fixture).context("the node")?;
    reinstall_machine(fixture).context("the machine")
}

/// Deletes all objects and undeletes them. Unreferenced volumes are removed.
fn delete_objects(fixture: &Fixture) -> Result<()> {
    let unneeded = json!({
        "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume", "metadata": {"name": "unneeded"},
        "spec": {"name": "unneeded", "nodeName": fixture.node.name(), "size": "64Mi"},
    });
    fixture.apply(&unneeded)?;
    fixture.wait_value_present(OBJECTS, "unneeded", ".status.volumeID")?;
    let lvs = lvs(fixture)?;
    fixture.kubectl(&["delete", OBJECTS, "--all", "--wait=false"])?;
    fixture.kubectl(&["wait", "--for=delete", &format!("{OBJECTS}/unneeded"), "--timeout=180s"])?;
    wait_blocked(fixture)?;
    undelete(fixture, "is being deleted")?;
    ensure!(self::lvs(fixture)?.len() == lvs.len() - 1, "{lvs:?} became {:?}", self::lvs(fixture)?);
    check_data(fixture)
}

/// Deletes the definition and takes it back.
fn delete_definition(fixture: &Fixture) -> Result<()> {
    fixture.kubectl(&["delete", DEFINITION, "--wait=false"])?;
    wait_blocked(fixture)?;
    undelete(fixture, "is being deleted")?;
    check_data(fixture)?;
    // A deployment tool may do the same without the plugin: then the objects are deleted
    fixture.kubectl(&["delete", DEFINITION, "--wait=false"])?;
    wait_blocked(fixture)?;
    for name in CLAIMS {
        let object = format!("{OBJECTS}/{}", fixture.volume_name(name)?);
        fixture.kubectl(&["patch", &object, "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#])?;
    }
    fixture.kubectl(&["wait", "--for=delete", DEFINITION, "--timeout=180s"])?;
    let definition = topolvm::manifests().join("base/crd.yaml");
    fixture.kubectl(&["apply", "--server-side", "-f", &definition.to_string_lossy()])?;
    let orphans: Vec<_> = CLAIMS.iter().map(|name| lv_of(fixture, name)).collect::<Result<_>>()?;
    for lv in &orphans {
        crate::orphans::wait_orphan(fixture, lv, "")?;
    }
    undelete(fixture, "was deleted")?;
    check_data(fixture)
}

/// Deletes the Node and registers it again. The volume of `asleep` is retained, and that of `awake` is not; `waits` has
/// none yet.
fn replace_node(fixture: &Fixture) -> Result<()> {
    let (kept, lv) = (fixture.volume_name("asleep")?, lv_of(fixture, "asleep")?);
    let retain = r#"{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}"#;
    fixture.kubectl(&["patch", "pv", &kept, "-p", retain])?;
    fixture.delete_pod("awake")?;
    // The volume of a new claim is not created: lvmd is stopped
    fixture.node.script("kill -STOP $(pidof lvmd)")?;
    fixture.apply(&claim("waits", "waiting", "64Mi", VolumeMode::Filesystem))?;
    fixture.apply(&pod("waits", "waits", VolumeMode::Filesystem))?;
    let selected = r".metadata.annotations.volume\.kubernetes\.io/selected-node";
    fixture.wait_value_present("pvc", "waits", selected)?;
    let waiting = fixture.value("pvc", "waits", ".metadata.uid")?;
    fixture.node.stop_kept(NODE)?;
    fixture.node.script("kill -CONT $(pidof lvmd)")?;
    let node = fixture.node.name();
    fixture.kubectl(&["delete", "node", node, "--timeout=180s"])?;
    for name in CLAIMS {
        fixture.kubectl(&["wait", "--for=delete", &format!("pvc/{name}"), "--timeout=180s"])?;
    }
    ensure!(fixture.value("pvc", "waits", ".metadata.uid")? == waiting, "a claim without a volume is another one");
    ensure!(fixture.value(OBJECTS, &kept, ".status.volumeID")? == lv, "the retained volume is forgotten");

    fixture.node.kill_kept("kubelet")?;
    fixture.cluster.ready("apiserver", || fixture.kubectl(&["get", "node", node]))?;
    topolvm::start_agent(&fixture.cluster, &fixture.node, &fixture.spec)?;
    topolvm::wait_for_driver(&fixture.cluster, &fixture.node, fixture.spec.flavor)?;
    fixture.wait_ready("waits")?;

    // As everybody takes a retained volume back
    let release = Commands::of("node-maintenance.md", "A node that comes back under its name")?;
    release.with("pvc-1c42", &kept)?.run(&fixture.cluster)?;
    let mut again = claim("asleep", "waiting", "64Mi", VolumeMode::Filesystem);
    again["spec"]["volumeName"] = json!(kept);
    fixture.apply(&again)?;
    fixture.start_pod("asleep", VolumeMode::Filesystem)?;
    ensure!(fixture.read_word("asleep")? == "asleep", "the retained data has changed");
    Ok(())
}

/// Gives the machine another identity, as a new installation does, and assigns its volume group to it with the command
/// of the Event.
fn reinstall_machine(fixture: &Fixture) -> Result<()> {
    fixture.delete_pod("asleep")?;
    fixture.node.script("id=$(tr 0-9a-f 1-9a-f0 </etc/machine-id) && echo \"$id\" >/etc/machine-id")?;
    fixture.restart_lvmd()?;
    fixture.apply(&pod("asleep", "asleep", VolumeMode::Filesystem))?;
    let said = fixture.wait_event_with("asleep", "FailedMount", "vgchange")?;
    let command = said.split('`').find(|text| text.starts_with("vgchange"));
    fixture.node.script(command.with_context(|| format!("no command in {said:?}"))?)?;
    fixture.wait_ready("asleep")?;
    ensure!(fixture.read_word("asleep")? == "asleep", "the data of the former installation has changed");
    Ok(())
}

/// Waits until the agent has reported that both volumes stay, and `doctor` names the command.
fn wait_blocked(fixture: &Fixture) -> Result<()> {
    for name in CLAIMS {
        let volume = fixture.volume_name(name)?;
        let blocked = r#".status.conditions[?(@.type=="Removed")].message"#;
        fixture.wait_value_present(OBJECTS, &volume, blocked)?;
        fixture.wait_event(&volume, "RemovalBlocked")?;
        let found = format!("LogicalVolume {volume} of node {} is being deleted", fixture.node.name());
        plugin::wait_for_findings(&fixture.cluster, "volumes", &[(&found, &format!("undelete {volume}"))])?;
    }
    Ok(())
}

/// Undeletes with the commands of the page, which must find both volumes in this state.
fn undelete(fixture: &Fixture, state: &str) -> Result<()> {
    let before: Vec<_> = CLAIMS.iter().map(|name| lv_of(fixture, name)).collect::<Result<_>>()?;
    let said = Commands::of("backup-and-gitops.md", "Take a deletion back")?.run(&fixture.cluster)?;
    for (name, lv) in CLAIMS.iter().zip(&before) {
        let volume = fixture.volume_name(name)?;
        let node = fixture.node.name();
        ensure!(said.contains(&format!("LogicalVolume {volume} of node {node} {state}")), "{said}");
        ensure!(fixture.value(OBJECTS, &volume, ".status.volumeID")? == *lv, "{volume} has another LV");
    }
    Ok(())
}

/// Restarts both pods and reads their data.
fn check_data(fixture: &Fixture) -> Result<()> {
    fixture.delete_pod("awake")?;
    for name in CLAIMS {
        fixture.start_pod(name, VolumeMode::Filesystem)?;
        ensure!(fixture.read_word(name)? == name, "the data of {name} has changed");
    }
    fixture.delete_pod("asleep")
}

/// Returns the volume handle of a claim.
fn lv_of(fixture: &Fixture, claim: &str) -> Result<String> {
    fixture.value("pv", &fixture.volume_name(claim)?, ".spec.csi.volumeHandle")
}

/// Returns the names of the LVs.
fn lvs(fixture: &Fixture) -> Result<Vec<String>> {
    let listed = fixture.node.script(&format!("lvs --noheadings -o lv_name {VG}"))?;
    Ok(listed.split_whitespace().map(str::to_owned).collect())
}
