//! Volume group snapshots with snapshot-controller, and the stock csi-snapshotter or the snapshotter inside
//! topolvm-controller.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use system_tests::fake_node::FakeNodes;
use system_tests::manifests::{DataSource, VolumeMode, claim, copied_claim, storage_class};
use testbed::sidecars::{Sidecar, apply_snapshot_crds};
use testbed::topolvm::controller_socket;
use topolvm_api::ApiFlavor::TopoLvm;
use topolvm_testkit::lvm::{FakeLvm, FakeVolume};

use crate::Body;
use crate::fixture::{Fixture, LV, spec};
use crate::snapshotter::{GIB, LVMD_CONFIG, clean_up, start_csi_snapshotter};

pub(crate) const ALL: &[(&str, Body)] = &[
    ("volume_group_snapshot_is_taken_restored_and_deleted", |fixture| take(fixture, false)),
    ("embedded_snapshotter_takes_volume_group_snapshots", |fixture| take(fixture, true)),
];

const NODE: &str = "grouping";
const CLASS: &str = "grouped";
const CLAIMS: [&str; 2] = ["data", "log"];
const GROUP: &str = "volumegroupsnapshot";
const PROVISIONER: &str = "--controllers=provisioner";

fn take(fixture: &Fixture, is_embedded: bool) -> Result<()> {
    let cluster = &fixture.cluster;
    let controllers: &[&str] = if is_embedded { &[PROVISIONER, "--controllers=snapshotter"] } else { &[PROVISIONER] };
    let nodes = FakeNodes::new(cluster, &spec(&[])?)?;
    let lvm = FakeLvm::new().with_group("myvg1", 100 * GIB);
    lvm.add_volume("myvg1", "pool0", FakeVolume::thin_pool(50 * GIB));
    nodes.add(NODE, &lvm, LVMD_CONFIG)?;
    fixture.apply(&storage_class(TopoLvm, CLASS, Some("thin"), true))?;
    let done = fixture.with_controller(controllers, || {
        for name in CLAIMS {
            fixture.apply(&claim(name, CLASS, "1Gi", VolumeMode::Filesystem))?;
            fixture.kubectl(&["label", "pvc", name, "app=database"])?;
            fixture.wait("--for=jsonpath={.status.phase}=Bound", "pvc", name)?;
        }
        // The embedded snapshotter has waited for the definitions
        apply_snapshot_crds(cluster)?;
        Sidecar::SnapshotController.start(cluster, &controller_socket(cluster))?;
        if !is_embedded {
            start_csi_snapshotter(fixture)?;
        }
        check_group(fixture)
    });
    clean_up(fixture, &[CLASS])?;
    nodes.remove(NODE)?;
    nodes.stop()?;
    done?;
    fixture.check_rights()
}

/// Takes the group, restores one of its snapshots and deletes it.
fn check_group(fixture: &Fixture) -> Result<()> {
    apply_group_class(fixture, CLASS)?;
    take_group(fixture, CLASS, "monday")?;
    let group = format!("groupsnapshot-{}", fixture.value(GROUP, "monday", ".metadata.uid")?);
    for number in 0..CLAIMS.len() {
        let object: Value = fixture.cluster.get(&format!("/apis/topolvm.io/v1/logicalvolumes/{group}-{number}"))?;
        let conditions = object["status"]["conditions"].as_array().context("a snapshot without conditions")?;
        ensure!(conditions.iter().any(|condition| condition["type"] == "TakenTogether"), "{object}");
    }
    let names = fixture.kubectl(&["get", "volumesnapshot", "-o", "name"])?;
    let names: Vec<_> = names.lines().filter_map(|name| name.split_once('/')).map(|(_, name)| name).collect();
    ensure!(names.len() == CLAIMS.len(), "the group has the VolumeSnapshots {names:?}");
    for name in &names {
        fixture.wait("--for=jsonpath={.status.readyToUse}=true", "volumesnapshot", name)?;
    }
    fixture.apply(&copied_claim("restored", CLASS, "1Gi", DataSource::Snapshot(names[0])))?;
    fixture.wait("--for=jsonpath={.status.phase}=Bound", "pvc", "restored")?;

    delete_group(fixture, "monday")?;
    for name in names {
        fixture.wait("--for=delete", "volumesnapshot", name)?;
    }
    for number in 0..CLAIMS.len() {
        ensure!(!fixture.exists(LV, &format!("{group}-{number}"))?, "a snapshot exists after its group");
    }
    fixture.kubectl(&[&["delete", "pvc", "restored", "--timeout=180s"], &CLAIMS[..]].concat())?;
    fixture.kubectl(&["wait", "--for=delete", LV, "--all", "--timeout=180s"]).map(drop)
}

/// Creates a VolumeGroupSnapshotClass.
pub(crate) fn apply_group_class(fixture: &Fixture, name: &str) -> Result<()> {
    fixture.apply(&json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshotClass",
        "metadata": {"name": name}, "driver": TopoLvm.driver_name(), "deletionPolicy": "Delete",
    }))
}

/// Takes a group of the claims with the label `app=database`.
pub(crate) fn take_group(fixture: &Fixture, class: &str, name: &str) -> Result<()> {
    fixture.apply(&json!({
        "apiVersion": "groupsnapshot.storage.k8s.io/v1", "kind": "VolumeGroupSnapshot",
        "metadata": {"name": name},
        "spec": {
            "volumeGroupSnapshotClassName": class, "source": {"selector": {"matchLabels": {"app": "database"}}},
        },
    }))?;
    fixture.wait("--for=jsonpath={.status.readyToUse}=true", GROUP, name)
}

/// Deletes a group, and waits until all contents of groups are gone.
pub(crate) fn delete_group(fixture: &Fixture, name: &str) -> Result<()> {
    fixture.kubectl(&["delete", "--timeout=180s", GROUP, name])?;
    fixture.kubectl(&["wait", "--for=delete", "volumegroupsnapshotcontent", "--all", "--timeout=180s"]).map(drop)
}
