//! Deletion of Nodes with their volumes.

use anyhow::{Result, ensure};
use serde_json::json;
use system_tests::commands::Commands;
use system_tests::manifests::{VolumeMode, claim, storage_class};
use topolvm_api::ApiFlavor;

use crate::Body;
use crate::fixture::{Fixture, LV};

pub(crate) const ALL: &[(&str, Body)] = &[
    ("node_deletion_removes_only_its_claims_and_volumes", delete_node),
    ("node_deletion_without_controller_is_completed_later", delete_node_without_controller),
    ("skip_node_finalize_keeps_claims_and_volumes", skip_finalizing),
];

const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
const SELECTED: &str = "volume.kubernetes.io/selected-node";

fn delete_node(fixture: &Fixture) -> Result<()> {
    for node in ["n1", "n2"] {
        fixture.create_node(node)?;
        fixture.create_volume(&format!("pvc-{node}"), node)?;
        fixture.create_claim(&format!("waiting-{node}"), &json!({SELECTED: node}), &[])?;
    }
    // As one of a class that binds at once
    fixture.create_claim("immediate", &json!({PROVISIONER: "topolvm.io"}), &[])?;
    fixture.bind_claim("immediate", "pvc-n1")?;
    bind_by_hand(fixture)?;
    // Scheduled to the first node, and the volume was created on the second: a copy, or because the first seemed to be
    // full
    fixture.create_claim("made-elsewhere", &json!({PROVISIONER: "topolvm.io", SELECTED: "n1"}), &[])?;
    fixture.bind_claim("made-elsewhere", "pvc-n2")?;
    let mut foreign = storage_class(ApiFlavor::TopoLvm, "foreign", None, false);
    foreign["provisioner"] = json!("ebs.example");
    fixture.apply(&foreign)?;
    let mut foreign = claim("foreign", "foreign", "1Gi", VolumeMode::Filesystem);
    foreign["metadata"]["annotations"] = json!({SELECTED: "n1"});
    fixture.apply(&foreign)?;

    fixture.kubectl(&["delete", "node", "n1", "--timeout=180s"])?;
    for (kind, name) in [("pvc", "immediate"), ("pvc", "by-hand"), (LV, "pvc-n1")] {
        fixture.wait("--for=delete", kind, name)?;
    }
    for (kind, name) in [
        ("node", "n2"),
        ("pvc", "waiting-n1"),
        ("pvc", "waiting-n2"),
        ("pvc", "foreign"),
        ("pvc", "made-elsewhere"),
        (LV, "pvc-n2"),
        // Its PersistentVolume is retained
        (LV, "pvc-by-hand"),
    ] {
        ensure!(fixture.exists(kind, name)?, "{kind} {name} has gone too");
        let deleted = fixture.value(kind, name, ".metadata.deletionTimestamp")?;
        ensure!(deleted.is_empty(), "{kind} {name} is on its way out");
    }
    for (claim, what) in [("immediate", "Warning NodeDeleted"), ("waiting-n1", "Normal NodeDeleted")] {
        fixture.wait_event("PersistentVolumeClaim", claim, what, "Node n1, which ")?;
    }
    for volume in ["pvc-n1", "pvc-by-hand"] {
        fixture.wait_event("LogicalVolume", volume, "Normal NodeDeleted", "Node n1 was deleted")?;
    }
    fixture.kubectl(&["delete", "node", "n2", "--timeout=180s"])?;
    fixture.wait("--for=delete", "pvc", "made-elsewhere")?;
    for claim in ["waiting-n1", "waiting-n2"] {
        let selected = fixture.value("pvc", claim, r".metadata.annotations.volume\.kubernetes\.io/selected-node")?;
        ensure!(selected.is_empty(), "{claim} has the deleted Node {selected}");
    }
    fixture.kubectl(&["delete", "pvc", "--all", "--timeout=180s"])?;
    fixture.kubectl(&["delete", "pv", "pvc-n1", "pvc-n2", "any-name", "--timeout=180s"])?;
    let no_finalizers = r#"{"metadata":{"finalizers":null}}"#;
    fixture.kubectl(&["patch", LV, "pvc-by-hand", "--type=merge", "-p", no_finalizers])?;
    fixture.kubectl(&["delete", LV, "pvc-by-hand", "--timeout=180s"])?;
    fixture.check_rights()
}

/// Binds a claim to a volume of the first node as an administrator does: a PersistentVolume of any name, and a claim
/// without a class that names it. The claim has no annotation with the provisioner or the node.
fn bind_by_hand(fixture: &Fixture) -> Result<()> {
    fixture.create_volume("pvc-by-hand", "n1")?;
    let handle = fixture.value(LV, "pvc-by-hand", ".metadata.uid")?;
    fixture.apply(&json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "any-name"},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "storageClassName": "",
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": "default", "name": "by-hand"},
            "csi": {"driver": "topolvm.io", "volumeHandle": handle},
        },
    }))?;
    let mut by_hand = claim("by-hand", "", "1Gi", VolumeMode::Filesystem);
    by_hand["spec"]["volumeName"] = json!("any-name");
    fixture.apply(&by_hand)?;
    fixture.wait("--for=jsonpath={.status.phase}=Bound", "pvc", "by-hand")
}

fn delete_node_without_controller(fixture: &Fixture) -> Result<()> {
    fixture.cluster.stop(testbed::topolvm::CONTROLLER, std::time::Duration::from_secs(10))?;
    fixture.create_node("n3")?;
    fixture.create_volume("pvc-n3", "n3")?;
    fixture.kubectl(&["delete", "node", "n3", "--wait=false"])?;
    ensure!(fixture.exists("node", "n3")?, "the finalizer does not hold the Node");
    testbed::topolvm::start_controller(&fixture.cluster, &crate::fixture::spec(&[])?)?;
    fixture.wait("--for=delete", "node", "n3")?;
    ensure!(!fixture.exists(LV, "pvc-n3")?, "the Node went before its volume");
    Ok(())
}

fn skip_finalizing(fixture: &Fixture) -> Result<()> {
    fixture.with_controller(&["--skip-node-finalize"], || {
        fixture.create_node("n4")?;
        fixture.create_volume("pvc-n4", "n4")?;
        fixture.create_claim("kept", &json!({SELECTED: "n4"}), &[])?;
        fixture.kubectl(&["delete", "node", "n4", "--timeout=180s"])?;
        ensure!(fixture.value("pvc", "kept", ".metadata.deletionTimestamp")?.is_empty(), "the claim is deleted");
        let finalizers = fixture.value(LV, "pvc-n4", ".metadata.finalizers")?;
        ensure!(finalizers == r#"["topolvm.io/logicalvolume"]"#, "finalizers of the volume: {finalizers}");
        let clean_up = Commands::of("node-maintenance.md", "Reinstall a node and keep its volumes")?;
        clean_up.with("CLAIM=data VOLUME=pvc-1c42", "CLAIM=kept VOLUME=pvc-n4")?.run(&fixture.cluster)?;
        ensure!(!fixture.exists("pvc", "kept")? && !fixture.exists(LV, "pvc-n4")?, "claim or volume is left");
        Ok(())
    })
}
