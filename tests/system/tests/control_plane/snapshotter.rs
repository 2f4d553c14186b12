//! The snapshotter inside topolvm-controller, and its hand-over to csi-snapshotter and back, also while snapshots are
//! created and with groups of them.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use system_tests::fake_node::FakeNodes;
use system_tests::manifests::{VolumeMode, claim, snapshot, snapshot_class, storage_class};
use testbed::sidecars::{NAMESPACE, Sidecar, apply_snapshot_crds};
use testbed::topolvm::controller_socket;
use topolvm_api::ApiFlavor::TopoLvm;
use topolvm_testkit::lvm::{FakeLvm, FakeVolume};

use crate::Body;
use crate::fixture::{Fixture, GRACE, LV, spec};
use crate::group_snapshots::{apply_group_class, delete_group, take_group};

pub(crate) const ALL: &[(&str, Body)] = &[("embedded_snapshotter_and_csi_snapshotter_take_turns", take_turns)];

const NODE: &str = "snapshotting";
const THIN: &str = "thin-volumes";
const THICK: &str = "thick-volumes";
const SNAPSHOTS: &str = "snapshots";
pub(crate) const GIB: u64 = 1 << 30;
pub(crate) const LVMD_CONFIG: &str = "\
device-classes:
- {name: ssd, volume-group: myvg1, default: true, spare-gb: 0}
- {name: thin, volume-group: myvg1, type: thin, spare-gb: 0, thin-pool: {name: pool0, overprovision-ratio: 10}}
";
const SNAPSHOTTER: Sidecar = Sidecar::Snapshotter;
/// The source volumes are created inside the controller too.
const EMBEDDED: [&str; 2] = ["--controllers=provisioner", "--controllers=snapshotter"];
const CONTROLLER: &str = "topolvm-controller";
const CONTENT: &str = "volumesnapshotcontent";

fn take_turns(fixture: &Fixture) -> Result<()> {
    let cluster = &fixture.cluster;
    let nodes = FakeNodes::new(cluster, &spec(&[])?)?;
    let lvm = FakeLvm::new().with_group("myvg1", 100 * GIB);
    lvm.add_volume("myvg1", "pool0", FakeVolume::thin_pool(50 * GIB));
    nodes.add(NODE, &lvm, LVMD_CONFIG)?;
    for (name, class) in [(THIN, "thin"), (THICK, "ssd")] {
        fixture.apply(&storage_class(TopoLvm, name, Some(class), true))?;
    }
    let done = fixture.with_controller(&EMBEDDED, || {
        for class in [THIN, THICK] {
            fixture.apply(&claim(class, class, "1Gi", VolumeMode::Filesystem))?;
            fixture.wait("--for=jsonpath={.status.phase}=Bound", "pvc", class)?;
        }
        // The controller has waited for the definitions
        apply_snapshot_crds(cluster)?;
        Sidecar::SnapshotController.start(cluster, &controller_socket(cluster))?;
        fixture.apply(&snapshot_class(TopoLvm, SNAPSHOTS))?;
        check_embedded(fixture)?;
        fixture.kubectl(&["label", "pvc", THIN, "app=database"])?;
        apply_group_class(fixture, SNAPSHOTS)?;
        take_group(fixture, SNAPSHOTS, "embedded-group")?;
        check_interrupted(fixture, &nodes)?;
        begin(fixture, &nodes, "handed-over")
    });
    let done = done.and_then(|()| {
        // The embedded one has released the Lease in the middle of a call
        start_csi_snapshotter(fixture)?;
        finish(fixture, &nodes, "handed-over", SNAPSHOTTER.name())?;
        delete_group(fixture, "embedded-group")?;
        take_group(fixture, SNAPSHOTS, "stock-group")
    });
    let done = done.and_then(|()| {
        fixture.with_controller(&EMBEDDED, || {
            // csi-snapshotter ends with the socket, as a container that is restarted, and still has the Lease: the
            // embedded one waits
            cluster.stop(SNAPSHOTTER.name(), Duration::ZERO)?;
            start_csi_snapshotter(fixture)?;
            check_snapshot(fixture, "contended", SNAPSHOTTER.name())?;
            begin(fixture, &nodes, "handed-back")?;
            cluster.stop(SNAPSHOTTER.name(), GRACE)?;
            finish(fixture, &nodes, "handed-back", CONTROLLER)?;
            // Those of csi-snapshotter too
            delete_group(fixture, "stock-group")?;
            delete_snapshots(fixture, &["handed-over", "contended", "handed-back"])?;
            fixture.kubectl(&["delete", "pvc", THIN, THICK, "--timeout=180s"])?;
            fixture.kubectl(&["wait", "--for=delete", LV, "--all", "--timeout=180s"]).map(drop)
        })
    });
    clean_up(fixture, &[THIN, THICK])?;
    nodes.remove(NODE)?;
    nodes.stop()?;
    done?;
    fixture.check_rights()
}

/// Starts csi-snapshotter with the flags of its deployment and volume group snapshots.
pub(crate) fn start_csi_snapshotter(fixture: &Fixture) -> Result<()> {
    let mut command = SNAPSHOTTER.command(&fixture.cluster, &controller_socket(&fixture.cluster));
    command.args(["--leader-election", &format!("--leader-election-namespace={NAMESPACE}")]);
    command.arg("--feature-gates=CSIVolumeGroupSnapshot=true");
    fixture.cluster.spawn(SNAPSHOTTER.name(), &command)
}

/// Stops what creates snapshots, and removes the classes and the definitions of snapshots, so that other
/// tests find the cluster without them.
pub(crate) fn clean_up(fixture: &Fixture, storage_classes: &[&str]) -> Result<()> {
    fixture.cluster.stop(SNAPSHOTTER.name(), Duration::ZERO)?;
    Sidecar::SnapshotController.stop(&fixture.cluster)?;
    fixture.kubectl(&[&["delete", "storageclass"], storage_classes].concat())?;
    let all = fixture.kubectl(&["get", "crd", "-o", "name"])?;
    let ours: Vec<_> = all.lines().filter(|name| name.ends_with("snapshot.storage.k8s.io")).collect();
    fixture.kubectl(&[&["delete", "--timeout=180s"], ours.as_slice()].concat()).map(drop)
}

/// Creates and deletes a snapshot inside the controller, and shows why one cannot be created.
fn check_embedded(fixture: &Fixture) -> Result<()> {
    check_snapshot(fixture, "first", CONTROLLER)?;
    let content = content_of(fixture, "first")?;
    let object: Value =
        fixture.cluster.get(&format!("/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents/{content}"))?;
    let volume = format!("snapshot-{}", fixture.value("volumesnapshot", "first", ".metadata.uid")?);
    let handle = fixture.value(LV, &volume, ".status.volumeID")?;
    for (pointer, expected) in [
        ("/status/snapshotHandle", json!(handle)),
        ("/status/restoreSize", json!(GIB)),
        ("/status/error", Value::Null),
        ("/metadata/annotations/snapshot.storage.kubernetes.io~1volumesnapshot-being-created", Value::Null),
    ] {
        let found = object.pointer(pointer).cloned().unwrap_or_default();
        ensure!(found == expected, "{pointer} is {found} and not {expected}");
    }
    let created = object.pointer("/status/creationTime").and_then(Value::as_i64);
    ensure!(created.is_some_and(|time| time > 1_700_000_000_000_000_000), "created at {created:?}");
    delete_snapshots(fixture, &["first"])?;
    ensure!(!fixture.exists(LV, &volume)?, "{volume} exists after its VolumeSnapshot");

    fixture.apply(&snapshot("refused", SNAPSHOTS, THICK))?;
    let content = content_of(fixture, "refused")?;
    fixture.wait_event("VolumeSnapshotContent", &content, "Warning SnapshotCreationFailed", "Unimplemented")?;
    fixture.cluster.ready("apiserver", || {
        let message = fixture.value("volumesnapshot", "refused", ".status.error.message")?;
        ensure!(message.contains("Unimplemented"), "the VolumeSnapshot shows {message:?}");
        Ok(())
    })?;
    delete_snapshots(fixture, &["refused"])
}

/// Deletes a VolumeSnapshot while its snapshot is created: nothing may be left.
fn check_interrupted(fixture: &Fixture, nodes: &FakeNodes<'_>) -> Result<()> {
    begin(fixture, nodes, "interrupted")?;
    let volume = format!("snapshot-{}", fixture.value("volumesnapshot", "interrupted", ".metadata.uid")?);
    let content = content_of(fixture, "interrupted")?;
    fixture.kubectl(&["delete", "--wait=false", "volumesnapshot", "interrupted"])?;
    fixture.cluster.ready("apiserver", || {
        let deleted = fixture.value(CONTENT, &content, ".metadata.deletionTimestamp")?;
        ensure!(!deleted.is_empty(), "snapshot-controller has not deleted {content}");
        Ok(())
    })?;
    nodes.start_agent(NODE)?;
    for (kind, name) in [("volumesnapshot", "interrupted"), (CONTENT, &content), (LV, &volume)] {
        fixture.wait("--for=delete", kind, name)?;
    }
    Ok(())
}

/// Takes a snapshot, and checks who has written its status.
fn check_snapshot(fixture: &Fixture, name: &str, manager: &str) -> Result<()> {
    fixture.apply(&snapshot(name, SNAPSHOTS, THIN))?;
    fixture.wait("--for=jsonpath={.status.readyToUse}=true", "volumesnapshot", name)?;
    check_manager(fixture, name, manager)
}

/// Begins a snapshot that the stopped agent does not finish.
fn begin(fixture: &Fixture, nodes: &FakeNodes<'_>, name: &str) -> Result<()> {
    nodes.stop_agent(NODE)?;
    fixture.apply(&snapshot(name, SNAPSHOTS, THIN))?;
    let volume = format!("snapshot-{}", fixture.value("volumesnapshot", name, ".metadata.uid")?);
    fixture.cluster.ready("apiserver", || {
        ensure!(fixture.exists(LV, &volume)?, "no call has created {volume}");
        Ok(())
    })?;
    let annotation = r".metadata.annotations.snapshot\.storage\.kubernetes\.io/volumesnapshot-being-created";
    let value = fixture.value(CONTENT, &content_of(fixture, name)?, annotation)?;
    ensure!(value == "yes", "the annotation about the creation is {value:?}");
    Ok(())
}

/// Lets the agent finish a snapshot, and checks who has written its status.
fn finish(fixture: &Fixture, nodes: &FakeNodes<'_>, name: &str, manager: &str) -> Result<()> {
    nodes.start_agent(NODE)?;
    fixture.wait("--for=jsonpath={.status.readyToUse}=true", "volumesnapshot", name)?;
    check_manager(fixture, name, manager)
}

/// Checks which program has written the status of a VolumeSnapshotContent last.
fn check_manager(fixture: &Fixture, name: &str, manager: &str) -> Result<()> {
    let content = content_of(fixture, name)?;
    let arguments = ["get", CONTENT, &content, "--show-managed-fields", "-o"];
    let field = r#"jsonpath={range .metadata.managedFields[?(@.subresource=="status")]}{.time} {.manager}{"\n"}{end}"#;
    let managers = fixture.kubectl(&[&arguments[..], &[field]].concat())?;
    let last = managers.lines().max().and_then(|line| line.split_once(' ')).map(|(_, manager)| manager);
    ensure!(last == Some(manager), "{name} was written by {last:?} and not by {manager}: {managers}");
    Ok(())
}

/// Returns the name of the VolumeSnapshotContent of a VolumeSnapshot, when snapshot-controller has created it.
fn content_of(fixture: &Fixture, name: &str) -> Result<String> {
    let content = format!("snapcontent-{}", fixture.value("volumesnapshot", name, ".metadata.uid")?);
    fixture.cluster.ready("apiserver", || {
        ensure!(fixture.exists(CONTENT, &content)?, "snapshot-controller has not created {content}");
        Ok(())
    })?;
    Ok(content)
}

/// Deletes VolumeSnapshots, and waits until their contents are gone.
fn delete_snapshots(fixture: &Fixture, names: &[&str]) -> Result<()> {
    let contents: Vec<_> = names.iter().map(|name| content_of(fixture, name)).collect::<Result<_>>()?;
    fixture.kubectl(&[&["delete", "--timeout=180s", "volumesnapshot"], names].concat())?;
    for content in contents {
        ensure!(!fixture.exists(CONTENT, &content)?, "{content} exists after its VolumeSnapshot");
    }
    Ok(())
}
