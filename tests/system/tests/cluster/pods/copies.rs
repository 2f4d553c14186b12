//! Snapshots, restored volumes and clones with csi-snapshotter in a pod, and objects that remain of a deleted Node.

use anyhow::{Result, ensure};
use serde_json::json;
use system_tests::manifests::{
    DataSource, VolumeMode, claim, copied_claim, pod, snapshot, snapshot_class, storage_class,
};
use system_tests::shared::TestCluster;
use testbed::node::Node;
use testbed::topolvm::{THIN_CLASS, THIN_POOL, THIN_VG};
use topolvm_api::ApiFlavor::TopoLvm;

const LV: &str = "logicalvolumes.topolvm.io";

pub(super) fn create_copies(shared: &TestCluster, node: &Node) -> Result<()> {
    shared.apply(&storage_class(TopoLvm, "thin", Some(THIN_CLASS), false))?;
    shared.apply(&snapshot_class(TopoLvm, "snapshots"))?;
    shared.apply(&claim("source", "thin", "64Mi", VolumeMode::Filesystem))?;
    start(shared, "source")?;
    in_pod(shared, "source", "echo before >/data/file && sync")?;
    shared.apply(&snapshot("snapshot", "snapshots", "source"))?;
    let ready = "--for=jsonpath={.status.readyToUse}=true";
    shared.kubectl(&["wait", ready, "volumesnapshot/snapshot", "--timeout=180s"])?;
    in_pod(shared, "source", "echo after >/data/file && sync")?;
    let copies =
        [("restored", DataSource::Snapshot("snapshot"), "before"), ("clone", DataSource::Claim("source"), "after")];
    for (name, source, _) in copies {
        shared.apply(&copied_claim(name, "thin", "64Mi", source))?;
        shared.apply(&pod(name, name, VolumeMode::Filesystem))?;
    }
    for (name, _, expected) in copies {
        shared.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{name}"), "--timeout=180s"])?;
        let text = in_pod(shared, name, "cat /data/file")?;
        ensure!(text.trim() == expected, "{name} says {text:?}");
    }
    shared.kubectl(&["delete", "pods", "--all", "--timeout=180s"])?;
    shared.kubectl(&[
        "delete",
        "volumesnapshot/snapshot",
        "pvc/source",
        "pvc/restored",
        "pvc/clone",
        "--timeout=180s",
    ])?;
    shared.kubectl(&["wait", "--for=delete", LV, "--all", "--timeout=180s"])?;
    let left = node.script(&format!("lvs --noheadings -o lv_name {THIN_VG}"))?;
    ensure!(left.trim() == THIN_POOL, "LVs are left: {left}");
    Ok(())
}

/// Deletes a Node without a machine: a claim with its volume, and a disk operation, are deleted with it.
pub(super) fn delete_with_node(shared: &TestCluster) -> Result<()> {
    shared.apply(&json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "gone", "finalizers": ["topolvm.io/node"]},
    }))?;
    shared.apply(&json!({
        "apiVersion": "topolvm.io/v1", "kind": "LogicalVolume",
        "metadata": {"name": "lost", "finalizers": ["topolvm.io/logicalvolume"]},
        "spec": {"name": "lost", "nodeName": "gone", "size": "1Gi"},
    }))?;
    shared.apply(&json!({
        "apiVersion": "topolvm.io/v1", "kind": "DiskOperation",
        "metadata": {"name": "lost", "finalizers": ["topolvm.io/diskoperation"]},
        "spec": {"nodeName": "gone", "disk": "ata-X", "type": "Add"},
    }))?;
    let handle = shared.value(LV, "lost", ".metadata.uid")?;
    shared.apply(&json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "lost"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": "thin",
            "claimRef": {"namespace": "default", "name": "lost"},
            "persistentVolumeReclaimPolicy": "Delete",
            "csi": {"driver": "topolvm.io", "volumeHandle": handle},
        },
    }))?;
    let mut lost = claim("lost", "thin", "1Gi", VolumeMode::Filesystem);
    lost["metadata"]["annotations"] = json!({"volume.kubernetes.io/storage-provisioner": "topolvm.io"});
    lost["spec"]["volumeName"] = json!("lost");
    shared.apply(&lost)?;
    shared.wait_value("pvc", "lost", ".status.phase", "Bound")?;
    shared.kubectl(&["delete", "node", "gone", "--timeout=180s"])?;
    for object in ["pvc/lost".to_owned(), format!("{LV}/lost"), "diskoperations.topolvm.io/lost".to_owned()] {
        shared.kubectl(&["wait", "--for=delete", &object, "--timeout=180s"])?;
    }
    // csi-provisioner deletes it, too
    shared.kubectl(&["delete", "pv", "lost", "--ignore-not-found", "--timeout=180s"]).map(drop)
}

fn start(shared: &TestCluster, name: &str) -> Result<()> {
    shared.apply(&pod(name, name, VolumeMode::Filesystem))?;
    shared.kubectl(&["wait", "--for=condition=Ready", &format!("pod/{name}"), "--timeout=180s"]).map(drop)
}

fn in_pod(shared: &TestCluster, pod: &str, script: &str) -> Result<String> {
    shared.kubectl(&["exec", pod, "--", "sh", "-c", script])
}
