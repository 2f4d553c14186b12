//! Where pods and volumes go: free space steers kube-scheduler, and volumes steer pods.

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use system_tests::manifests::{VolumeMode, claim, pod, storage_class};
use testbed::node::{Node, NodeSpec};
use testbed::size::GIB;
use testbed::topolvm::{self, TopolvmSpec};
use topolvm_api::ApiFlavor::TopoLvm;

use crate::Body;
use crate::fixture::Fixture;

pub(crate) fn trials() -> Vec<(String, Body)> {
    let all: [(&str, Body); 4] = [
        ("a_pod_whose_volume_fits_nowhere_stays_pending_and_says_why_and_others_run", fits_nowhere),
        ("a_pod_whose_volume_does_not_fit_beside_another_says_why_and_runs_when_that_is_deleted", fits_later),
        ("a_volume_that_binds_at_once_goes_to_the_emptiest_node_and_its_pod_follows", emptiest),
        ("a_claim_for_one_pod_is_not_given_to_a_second", one_pod),
    ];
    all.map(|(name, body)| (name.to_owned(), body)).into()
}

fn fits_nowhere(fixture: &Fixture) -> Result<()> {
    fixture.apply(&storage_class(TopoLvm, "nowhere", Some("no-such-class"), false))?;
    for (name, class, size) in [("large", "waiting", "9Gi"), ("lost", "nowhere", "1Gi"), ("fits", "thin", "9Gi")] {
        fixture.apply_claim(name, class, size)?;
        fixture.apply(&pod(name, name, VolumeMode::Filesystem))?;
    }
    for name in ["large", "lost"] {
        let event = fixture.wait_event(name, "FailedScheduling")?;
        ensure!(event.contains("did not have enough free storage"), "the event about {name} says: {event}");
    }
    fixture.wait_ready("fits")?;
    for name in ["large", "lost"] {
        let phase = fixture.kubectl(&["get", "pvc", name, "-o", "jsonpath={.status.phase}"])?;
        ensure!(phase == "Pending", "the claim {name} is {phase}");
        fixture.end(name)?;
    }
    fixture.end("fits")?;
    fixture.kubectl(&["delete", "storageclass", "nowhere"])?;
    fixture.wait_no_volumes()
}

/// As devices: no filesystem needs to be made on so much.
fn fits_later(fixture: &Fixture) -> Result<()> {
    for (name, size) in [("early", "5Gi"), ("late", "4Gi")] {
        fixture.apply(&claim(name, "waiting", size, VolumeMode::Block))?;
    }
    fixture.start("early", VolumeMode::Block)?;
    fixture.apply(&pod("late", "late", VolumeMode::Block))?;
    // kube-scheduler may learn only from the failure to make the volume that there is less room than before
    fixture.wait_event_with("late", "FailedScheduling", "did not have enough free storage")?;
    let phase = fixture.value("pvc", "late", ".status.phase")?;
    ensure!(phase == "Pending", "the claim is {phase}");
    fixture.end("early")?;
    fixture.wait_ready("late")?;
    fixture.check_volumes(1)?;
    fixture.end("late")?;
    fixture.check_volumes(0)
}

/// With a second node that has more room.
fn emptiest(fixture: &Fixture) -> Result<()> {
    let spec = NodeSpec { vg_disks: vec![12 * GIB], ..NodeSpec::number(2) };
    let node = fixture.cluster.add_node(&spec)?;
    let placed = place(fixture, &node);
    // The last of its volumes are gone, so that nobody waits for it
    fixture.kubectl(&["delete", "node", node.name(), "--timeout=60s"])?;
    node.down()?;
    placed?;
    fixture.check_volumes(0)
}

fn place(fixture: &Fixture, node: &Node) -> Result<()> {
    // It has none of the further device classes
    topolvm::start_node_programs(&fixture.cluster, node, &TopolvmSpec::nodes(1)?)?;
    topolvm::wait_for_driver(&fixture.cluster, node, TopoLvm)?;
    let annotation = r".metadata.annotations.capacity\.topolvm\.io/00default";
    fixture.wait_some("node", node.name(), annotation)?;
    fixture.apply_claim("roomy", "immediate", "64Mi")?;
    // Only the new node has so much
    fixture.apply_claim("large", "waiting", "10Gi")?;
    for name in ["roomy", "large"] {
        fixture.apply(&pod(name, name, VolumeMode::Filesystem))?;
    }
    for name in ["roomy", "large"] {
        fixture.wait_ready(name)?;
        let on = fixture.kubectl(&["get", "pod", name, "-o", "jsonpath={.spec.nodeName}"])?;
        ensure!(on == node.name(), "{name} runs on {on}");
    }
    let volumes = node.script("lvs --noheadings -o lv_name myvg1")?;
    ensure!(volumes.split_whitespace().count() == 2, "LVs of the new node: {volumes}");
    fixture.end("roomy")?;
    fixture.end("large")
}

fn one_pod(fixture: &Fixture) -> Result<()> {
    let mut only = claim("only", "waiting", "64Mi", VolumeMode::Filesystem);
    *only.pointer_mut("/spec/accessModes").context("a claim has access modes")? = json!(["ReadWriteOncePod"]);
    fixture.apply(&only)?;
    fixture.start("only", VolumeMode::Filesystem)?;
    fixture.apply(&pod("second", "only", VolumeMode::Filesystem))?;
    let event = fixture.wait_event("second", "FailedScheduling")?;
    ensure!(event.contains("ReadWriteOncePod"), "the event says: {event}");
    // When the first has gone it is the second's turn
    fixture.stop("only")?;
    fixture.wait_ready("second")?;
    fixture.stop("second")?;
    fixture.delete_claim("only")?;
    fixture.check_volumes(0)
}
