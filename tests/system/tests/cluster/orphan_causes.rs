//! The ways in which an LV and its objects lose each other, one after the other in one cluster: each ends in a report
//! or in quarantine, and no data is lost. A restored etcd is in `etcd_backup`.

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::Trial;
use system_tests::manifests::{VolumeMode, claim, pod, snapshot};
use system_tests::plugin;
use testbed::sidecars::Sidecar;
use testbed::suite;
use testbed::topolvm::{self, NODE, THIN_VG, TopolvmSpec, controller_socket};

use crate::fixture::{self, Fixture, VG};
use crate::orphans::{OBJECTS, take_object_away, wait_orphan};

/// Orphans that nothing refers to would be renamed within seconds, and removed an hour later.
const FLAGS: [&str; 3] = ["--orphans=delete", "--orphan-grace-period=2s", "--quarantine-period=1h"];
const NO_FINALIZERS: &str = r#"{"metadata":{"finalizers":null}}"#;

/// A volume that has its claim's name in a file.
struct Volume {
    claim: &'static str,
    /// Name of PersistentVolume and LogicalVolume.
    name: String,
    /// Name of the LV.
    lv: String,
    /// Volume group of the LV.
    group: &'static str,
}

/// A function that creates one cause with a volume, and checks the result.
type Cause = fn(&Fixture, &Volume) -> Result<()>;

pub(crate) fn tests() -> Vec<Trial> {
    let name = "orphans_of_every_cause_are_reported_and_keep_their_data";
    vec![suite::test(name, || fixture::with_own(TopolvmSpec::with_sidecars, &FLAGS, take_apart))]
}

fn take_apart(fixture: &Fixture) -> Result<()> {
    let causes: [(&str, &str, Cause); 8] = [
        ("agent-hangs", "waiting", hang_agent),
        ("node-off", "waiting", stop_programs),
        ("api-away", "waiting", start_without_api),
        ("pv-forced", "waiting", force_persistent_volume),
        ("snapshotter-dies", "thin", kill_snapshotter),
        ("lv-renamed", "waiting", rename_lv),
        ("other-cluster", "waiting", tag_as_of_another_cluster),
        ("stays", "waiting", |_, _| Ok(())),
    ];
    let mut volumes = make_volumes(fixture, causes.map(|(claim, class, _)| (claim, class)))?;
    for (volume, (claim, _, happens)) in volumes.iter().zip(causes) {
        eprintln!("orphan_causes: {claim}");
        happens(fixture, volume).with_context(|| format!("{claim}: {}", volume.lv))?;
    }
    volumes.push(kill_provisioner(fixture).context("csi-provisioner dies")?);
    remove_lv(fixture).context("an LV that is removed by hand")?;
    check_data(fixture, &volumes)?;
    take_all_objects(fixture, &volumes).context("all objects at once")
}

/// Creates volumes of these classes, whose pods write the claim's name into a file and end.
fn make_volumes<const N: usize>(fixture: &Fixture, wanted: [(&'static str, &str); N]) -> Result<Vec<Volume>> {
    for (name, class) in wanted {
        fixture.apply(&claim(name, class, "64Mi", VolumeMode::Filesystem))?;
        fixture.apply(&pod(name, name, VolumeMode::Filesystem))?;
    }
    let made = wanted.map(|(name, class)| {
        fixture.wait_ready(name)?;
        fixture.write_word(name, name)?;
        fixture.wait_remembered(name)?;
        fixture.delete_pod(name)?;
        let volume = fixture.volume_name(name)?;
        let lv = fixture.value("pv", &volume, ".spec.csi.volumeHandle")?;
        let group = if class == "thin" { THIN_VG } else { VG };
        Ok(Volume { claim: name, name: volume, lv, group })
    });
    made.into_iter().collect()
}

/// The object is deleted without its finalizer while the agent hangs. The LV is kept until its PersistentVolume is
/// deleted, and then quarantined.
fn hang_agent(fixture: &Fixture, volume: &Volume) -> Result<()> {
    take_object_away(fixture, &volume.name)?;
    delete_claim_of_lost(fixture, volume)
}

/// The same while neither agent nor lvmd runs, as on a machine that is off: the agent starts without a memory of it.
fn stop_programs(fixture: &Fixture, volume: &Volume) -> Result<()> {
    topolvm::stop_node_programs(&fixture.node, &fixture.spec)?;
    let object = format!("{OBJECTS}/{}", volume.name);
    fixture.kubectl(&["delete", &object, "--wait=false"])?;
    fixture.kubectl(&["patch", &object, "--type=merge", "-p", NO_FINALIZERS])?;
    topolvm::start_node_programs(&fixture.cluster, &fixture.node, &fixture.spec)?;
    delete_claim_of_lost(fixture, volume)
}

/// The LV is kept as long as the PersistentVolume exists, which `doctor` names; then it is quarantined.
fn delete_claim_of_lost(fixture: &Fixture, volume: &Volume) -> Result<()> {
    wait_orphan(fixture, &volume.lv, &format!("PersistentVolume {} still exists", volume.name))?;
    let found = format!("PersistentVolume {} has no LogicalVolume", volume.name);
    plugin::wait_for_findings(&fixture.cluster, "volumes", &[(&found, "undelete --all")])?;
    fixture.delete_claim(volume.claim)?;
    wait_orphan(fixture, &format!("topolvm.quarantine.{}", volume.lv), "in quarantine until")
}

/// The agent starts without an API server, so it has no objects.
fn start_without_api(fixture: &Fixture, volume: &Volume) -> Result<()> {
    fixture.cluster.restart_storage(|_| {
        let before = fixture.node.script("pidof topolvm-node")?;
        fixture.node.kill_kept(NODE)?;
        let is_new = format!("until now=$(pidof topolvm-node) && [ $now != {} ]; do sleep 0.1; done", before.trim());
        fixture.node.script(&is_new).map(drop)
    })?;
    fixture.start_pod(volume.claim, VolumeMode::Filesystem)?;
    ensure!(fixture.read_word(volume.claim)? == volume.claim, "the data has changed");
    fixture.delete_pod(volume.claim)
}

/// PersistentVolume and claim are deleted without their finalizers while csi-provisioner is away. The LogicalVolume
/// stays.
fn force_persistent_volume(fixture: &Fixture, volume: &Volume) -> Result<()> {
    Sidecar::Provisioner.stop(&fixture.cluster)?;
    for object in [format!("persistentvolumeclaim/{}", volume.claim), format!("persistentvolume/{}", volume.name)] {
        delete_by_force(fixture, &object)?;
    }
    Sidecar::Provisioner.start(&fixture.cluster, &controller_socket(&fixture.cluster))?;
    ensure_object_stays(fixture, &volume.name)
}

/// csi-provisioner exits after it has requested the volume, and the claim is deleted before it restarts: no
/// PersistentVolume is created. The LogicalVolume and its LV stay.
fn kill_provisioner(fixture: &Fixture) -> Result<Volume> {
    let name = "provisioner-dies";
    fixture.node.script("kill -STOP $(pidof topolvm-node)")?;
    fixture.apply(&claim(name, "immediate", "64Mi", VolumeMode::Filesystem))?;
    let uid = fixture.value("pvc", name, ".metadata.uid")?;
    let object = format!("pvc-{uid}");
    fixture.wait_value_present(OBJECTS, &object, ".metadata.uid")?;
    Sidecar::Provisioner.stop(&fixture.cluster)?;
    fixture.node.script("kill -CONT $(pidof topolvm-node)")?;
    fixture.kubectl(&["delete", "persistentvolumeclaim", name, "--timeout=180s"])?;
    fixture.wait_value_present(OBJECTS, &object, ".status.volumeID")?;
    Sidecar::Provisioner.start(&fixture.cluster, &controller_socket(&fixture.cluster))?;
    let lv = fixture.value(OBJECTS, &object, ".status.volumeID")?;
    ensure_object_stays(fixture, &object)?;
    Ok(Volume { claim: name, name: object, lv, group: VG })
}

/// csi-snapshotter ends in the middle, and VolumeSnapshot and content are deleted without their finalizers.
fn kill_snapshotter(fixture: &Fixture, volume: &Volume) -> Result<()> {
    fixture.node.script("kill -STOP $(pidof topolvm-node)")?;
    fixture.apply(&snapshot("cut", "snapshots", volume.claim))?;
    let uid = fixture.value("volumesnapshot", "cut", ".metadata.uid")?;
    let object = format!("snapshot-{uid}");
    fixture.wait_value_present(OBJECTS, &object, ".metadata.uid")?;
    let sidecars = [Sidecar::SnapshotController, Sidecar::Snapshotter];
    for sidecar in sidecars {
        sidecar.stop(&fixture.cluster)?;
    }
    fixture.node.script("kill -CONT $(pidof topolvm-node)")?;
    for object in ["volumesnapshot/cut".to_owned(), format!("volumesnapshotcontent/snapcontent-{uid}")] {
        delete_by_force(fixture, &object)?;
    }
    fixture.wait_value_present(OBJECTS, &object, ".status.volumeID")?;
    for sidecar in sidecars {
        sidecar.start(&fixture.cluster, &controller_socket(&fixture.cluster))?;
    }
    ensure_object_stays(fixture, &object)?;
    let lv = fixture.value(OBJECTS, &object, ".status.volumeID")?;
    fixture.node.script(&format!("lvs {THIN_VG}/{lv}")).map(drop)
}

/// Deletes an object whose finalizers no running program removes.
fn delete_by_force(fixture: &Fixture, object: &str) -> Result<()> {
    fixture.kubectl(&["delete", object, "--wait=false"])?;
    // It may not have had finalizers yet, and be deleted already
    fixture.kubectl(&["patch", object, "--type=merge", "-p", NO_FINALIZERS]).ok();
    fixture.kubectl(&["wait", "--for=delete", object, "--timeout=180s"]).map(drop)
}

/// Checks that the object has its LV still, and that the plugin lists it.
fn ensure_object_stays(fixture: &Fixture, object: &str) -> Result<()> {
    fixture.wait_value_present(OBJECTS, object, ".status.volumeID")?;
    let listed = plugin::json(&fixture.cluster, &["volumes", "--all-namespaces"])?.to_string();
    ensure!(listed.contains(object), "kubectl topolvm volumes does not list {object}: {listed}");
    Ok(())
}

/// An administrator renames the LV. Its volume is reported as lost, and the LV is reported and kept.
fn rename_lv(fixture: &Fixture, volume: &Volume) -> Result<()> {
    let Volume { group, lv, .. } = volume;
    fixture.node.script(&format!("lvrename -qq {group} {lv} by-hand-{lv}"))?;
    fixture.wait_event(&volume.name, "VolumeLost")?;
    let found = format!("the LV of LogicalVolume {} does not exist", volume.name);
    plugin::wait_for_findings(&fixture.cluster, "volumes", &[(&found, "")])?;
    fixture.node.script(&format!("lvrename -qq {group} by-hand-{lv} {lv}"))?;
    fixture.start_pod(volume.claim, VolumeMode::Filesystem)?;
    fixture.delete_pod(volume.claim)
}

/// The disk is one of another cluster: the object does not exist, and the LV has the tag of the other cluster.
fn tag_as_of_another_cluster(fixture: &Fixture, volume: &Volume) -> Result<()> {
    let path = format!("{}/{}", volume.group, volume.lv);
    let uid = fixture.value("namespace", "kube-system", ".metadata.uid")?;
    fixture.node.script(&format!(
        "lvchange -qq --deltag topolvm.io/cluster={uid} {path} && \
         lvchange -qq --addtag topolvm.io/cluster=00000000-0000-4000-8000-000000000000 {path}"
    ))?;
    take_object_away(fixture, &volume.name)?;
    fixture.delete_claim(volume.claim)?;
    wait_orphan(fixture, &volume.lv, "it was created in another cluster")
}

/// An administrator removes an LV: its volume is reported as lost, and no empty LV replaces it.
fn remove_lv(fixture: &Fixture) -> Result<()> {
    let volumes = make_volumes(fixture, [("removed", "waiting")])?;
    let volume = volumes.first().context("no volume")?;
    fixture.node.script(&format!("lvremove -qqy {VG}/{}", volume.lv))?;
    fixture.wait_event(&volume.name, "VolumeLost")?;
    let found = format!("the LV of LogicalVolume {} does not exist", volume.name);
    plugin::wait_for_findings(&fixture.cluster, "volumes", &[(&found, "")])?;
    let lvs = fixture.node.script(&format!("lvs --noheadings -o lv_name {VG}"))?;
    ensure!(!lvs.contains(&volume.lv), "an LV was made in the place of the one that was removed: {lvs}");
    fixture.delete_claim("removed")
}

/// All objects are deleted at once, as after a mistake with the whole kind: no LV is changed, with any flags.
fn take_all_objects(fixture: &Fixture, volumes: &[Volume]) -> Result<()> {
    fixture.node.script("kill -STOP $(pidof topolvm-node)")?;
    for object in fixture.kubectl(&["get", OBJECTS, "-o", "name"])?.split_whitespace() {
        // The other way round it would be an order to the agent, which it carries out
        fixture.kubectl(&["patch", object, "--type=merge", "-p", NO_FINALIZERS])?;
        fixture.kubectl(&["delete", object, "--timeout=180s"])?;
    }
    let left = fixture.kubectl(&["get", OBJECTS, "-o", "name"])?;
    ensure!(left.is_empty(), "objects are left: {left}");
    fixture.node.script("kill -CONT $(pidof topolvm-node)")?;
    let last = volumes.iter().find(|volume| volume.claim == "stays").context("no volume stays")?;
    wait_orphan(fixture, &last.lv, "the API server lists no LogicalVolume of this node")?;
    check_data(fixture, volumes)
}

/// Checks that each LV exists, under its name or in quarantine, with the data of its pod.
fn check_data(fixture: &Fixture, volumes: &[Volume]) -> Result<()> {
    for Volume { claim, lv, group, .. } in volumes {
        let said = fixture.node.script(&format!(
            "lv=/dev/{group}/{lv}; [ -e $lv ] || lv=/dev/{group}/topolvm.quarantine.{lv}; [ -e $lv ] && \
             if blkid $lv >/dev/null; then mkdir -p /run/inspected && mount -o ro $lv /run/inspected && \
             cat /run/inspected/file; umount /run/inspected; else echo blank; fi"
        ))?;
        // No pod has ever had the volume of a claim that was never bound
        let expected = if *claim == "provisioner-dies" { "blank" } else { *claim };
        ensure!(said.trim() == expected, "{claim}: {lv} has {said:?}");
    }
    Ok(())
}
