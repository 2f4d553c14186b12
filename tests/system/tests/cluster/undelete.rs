//! LogicalVolumes that are deleted by hand, with their CRD, or with a Node that is registered again, also by a machine
//! that was reinstalled: the data stays as long as a PersistentVolume refers to it, and can be used again.

use std::convert::identity;

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
/// Claims whose PersistentVolumes outlive the Node. That of `asleep` has the reclaim policy Retain; that of `offered`
/// has Delete and no claim at that time.
const KEPT: [&str; 2] = ["asleep", "offered"];
const DEFINITION: &str = "crd/logicalvolumes.topolvm.io";

pub(crate) fn tests() -> Vec<Trial> {
    let name = "deletion_of_objects_crd_or_node_keeps_data_of_volumes";
    vec![suite::test(name, || fixture::with_own(identity, &[], lose_objects))]
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
    replace_machine(fixture).context("the machine")
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

/// Deletes the Node and has the same machine register it again. The volume of `awake` goes with its claim; `waits` has
/// none yet.
fn replace_node(fixture: &Fixture) -> Result<()> {
    let retain = r#"{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}"#;
    fixture.kubectl(&["patch", "pv", &fixture.volume_name("asleep")?, "-p", retain])?;
    fixture.apply_claim("offered", "waiting", "64Mi")?;
    fixture.start_pod("offered", VolumeMode::Filesystem)?;
    fixture.write_word("offered", "offered")?;
    let kept = keep_volumes(fixture)?;
    fixture.delete_pod("awake")?;
    // The volume of a new claim, for which that of `offered` is too small, is not created: lvmd is stopped
    fixture.node.script("kill -STOP $(pidof lvmd)")?;
    fixture.apply_claim("waits", "waiting", "128Mi")?;
    fixture.apply(&pod("waits", "waits", VolumeMode::Filesystem))?;
    let selected = r".metadata.annotations.volume\.kubernetes\.io/selected-node";
    fixture.wait_value_present("pvc", "waits", selected)?;
    let waiting = fixture.value("pvc", "waits", ".metadata.uid")?;
    fixture.node.stop_kept(NODE)?;
    fixture.node.script("kill -CONT $(pidof lvmd)")?;
    delete_node(fixture, &kept, &CLAIMS)?;
    ensure!(fixture.value("pvc", "waits", ".metadata.uid")? == waiting, "a claim without a volume is another one");

    register_node(fixture)?;
    fixture.wait_ready("waits")?;
    take_back(fixture, &kept)?;
    KEPT.iter().try_for_each(|name| check_word(fixture, name))?;
    fixture.delete_pod_and_claim("waits")
}

/// Deletes the Node, and gives the machine another identity before it registers, as a new installation does. The volume
/// group is assigned to it with the command of the Event.
fn replace_machine(fixture: &Fixture) -> Result<()> {
    let kept = keep_volumes(fixture)?;
    fixture.node.stop_kept(NODE)?;
    delete_node(fixture, &kept, &["asleep"])?;
    fixture.node.script("id=$(tr 0-9a-f 1-9a-f0 </etc/machine-id) && echo \"$id\" >/etc/machine-id")?;
    fixture.restart_lvmd()?;

    register_node(fixture)?;
    take_back(fixture, &kept)?;
    let said = fixture.wait_event_with("asleep", "FailedMount", "vgchange")?;
    let command = said.split('`').find(|text| text.starts_with("vgchange"));
    fixture.node.script(command.with_context(|| format!("no command in {said:?}"))?)?;
    KEPT.iter().try_for_each(|name| check_word(fixture, name))
}

/// Deletes the pods of the claims whose volumes are to be kept, removes the claim `offered` from its PersistentVolume,
/// and returns the names of the PersistentVolumes.
fn keep_volumes(fixture: &Fixture) -> Result<[String; 2]> {
    let [asleep, offered] = KEPT;
    let kept = [fixture.volume_name(asleep)?, fixture.volume_name(offered)?];
    let set_policy = |policy: &str| {
        let patch = json!({"spec": {"persistentVolumeReclaimPolicy": policy}}).to_string();
        fixture.kubectl(&["patch", "pv", &kept[1], "-p", &patch]).map(drop)
    };
    fixture.kubectl(&["delete", "pods", asleep, offered, "--ignore-not-found", "--timeout=180s"])?;
    set_policy("Retain")?;
    fixture.kubectl(&["delete", "pvc", offered, "--timeout=180s"])?;
    release(fixture, &kept[1])?;
    set_policy("Delete")?;
    Ok(kept)
}

/// Removes the former claim from a PersistentVolume with the documented command.
fn release(fixture: &Fixture, volume: &str) -> Result<()> {
    fixture.wait_value("pv", volume, ".status.phase", "Released")?;
    let commands = Commands::of("node-maintenance.md", "A node that comes back under its name")?;
    commands.with("pvc-1c42", volume)?.run(&fixture.cluster)?;
    fixture.wait_value("pv", volume, ".status.phase", "Available")
}

/// Deletes the Node, and waits until these claims of it are gone. The volumes that are kept stay as they are.
fn delete_node(fixture: &Fixture, kept: &[String], claims: &[&str]) -> Result<()> {
    let handles: Vec<_> = kept.iter().map(|name| handle(fixture, name)).collect::<Result<_>>()?;
    fixture.kubectl(&["delete", "node", fixture.node.name(), "--timeout=180s"])?;
    for name in claims {
        fixture.kubectl(&["wait", "--for=delete", &format!("pvc/{name}"), "--timeout=180s"])?;
    }
    for (name, lv) in kept.iter().zip(&handles) {
        ensure!(fixture.value(OBJECTS, name, ".status.volumeID")? == *lv, "the volume {name} is forgotten");
    }
    Ok(())
}

/// Has kubelet register the Node, and starts the agent with a token for it.
fn register_node(fixture: &Fixture) -> Result<()> {
    fixture.node.kill_kept("kubelet")?;
    fixture.cluster.ready("apiserver", || fixture.kubectl(&["get", "node", fixture.node.name()]))?;
    topolvm::start_agent(&fixture.cluster, &fixture.node, &fixture.spec)?;
    topolvm::wait_for_driver(&fixture.cluster, &fixture.node, fixture.spec.flavor)
}

/// Creates a claim and a pod for each PersistentVolume that was kept.
fn take_back(fixture: &Fixture, kept: &[String; 2]) -> Result<()> {
    release(fixture, &kept[0])?;
    for (name, volume) in KEPT.iter().zip(kept) {
        let mut again = claim(name, "waiting", "64Mi", VolumeMode::Filesystem);
        again["spec"]["volumeName"] = json!(volume);
        fixture.apply(&again)?;
        fixture.apply(&pod(name, name, VolumeMode::Filesystem))?;
    }
    Ok(())
}

/// Waits until a pod runs, and reads its data, which is the name of its claim.
fn check_word(fixture: &Fixture, name: &str) -> Result<()> {
    fixture.wait_ready(name)?;
    ensure!(fixture.read_word(name)? == name, "the data of {name} has changed");
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
        fixture.apply(&pod(name, name, VolumeMode::Filesystem))?;
        check_word(fixture, name)?;
    }
    fixture.delete_pod("asleep")
}

/// Returns the volume handle of a claim.
fn lv_of(fixture: &Fixture, claim: &str) -> Result<String> {
    handle(fixture, &fixture.volume_name(claim)?)
}

/// Returns the volume handle of a PersistentVolume.
fn handle(fixture: &Fixture, volume: &str) -> Result<String> {
    fixture.value("pv", volume, ".spec.csi.volumeHandle")
}

/// Returns the names of the LVs.
fn lvs(fixture: &Fixture) -> Result<Vec<String>> {
    let listed = fixture.node.script(&format!("lvs --noheadings -o lv_name {VG}"))?;
    Ok(listed.split_whitespace().map(str::to_owned).collect())
}
