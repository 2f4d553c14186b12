//! Runs csi-provisioner with the flags of TopoLVM's chart. Without `--strict-topology` it names all nodes for every
//! volume, and that of the pod only comes first.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use system_tests::manifests::{DataSource, VolumeMode, claim, copied_claim, pod, storage_class};
use testbed::cluster::Cluster;
use testbed::failure::WithState as _;
use testbed::node::NodeSpec;
use testbed::sidecars::Sidecar;
use testbed::topolvm::{self, CONTROLLER, TopolvmSpec};
use topolvm_api::ApiFlavor::TopoLvm;

use crate::Body;
use crate::fixture::{Fixture, VG, logical_volume_resource};
use crate::scheduling::FREE;

/// Time for the controller to exit after SIGTERM.
const GRACE: Duration = Duration::from_secs(10);

pub(crate) fn tests() -> Vec<(String, Body)> {
    let name = "provisioner_without_strict_topology_respects_the_pods_node";
    vec![(name.to_owned(), run_on_two_nodes)]
}

/// Runs the checks with a second node, which has space. kube-scheduler ignores free space, as without storage capacity
/// tracking: it selects full nodes.
fn run_on_two_nodes(fixture: &Fixture) -> Result<()> {
    let cluster = &fixture.cluster;
    let node = cluster.add_node(&NodeSpec::number(2))?;
    let socket = topolvm::controller_socket(cluster);
    let without_provisioner = TopolvmSpec { embeds_controllers: false, ..fixture.spec.clone() };
    let tracking = |on: bool| {
        let patch = json!({"spec": {"storageCapacity": on}}).to_string();
        fixture.kubectl(&["patch", "csidriver", TopoLvm.driver_name(), "-p", &patch]).map(drop)
    };
    let done = topolvm::start_node_programs(cluster, &node, &TopolvmSpec::nodes(1)?)
        .and_then(|()| topolvm::wait_for_driver(cluster, &node, TopoLvm))
        .and_then(|()| fixture.wait_value_present("node", node.name(), FREE))
        .and_then(|()| restart_controller(cluster, &without_provisioner))
        .and_then(|()| Sidecar::UpstreamProvisioner.start(cluster, &socket))
        .and_then(|()| tracking(false))
        .and_then(|()| use_full_node(fixture, node.name()))
        .and_then(|()| copy_to_other_node(fixture, node.name()));
    let done = done.with_state(|| fixture.kubectl(&["get", "events"]).unwrap_or_default());
    tracking(true)?;
    Sidecar::UpstreamProvisioner.stop(cluster)?;
    restart_controller(cluster, &fixture.spec)?;
    fixture.kubectl(&["delete", "node", node.name(), "--timeout=180s"])?;
    node.down()?;
    done?;
    fixture.check_volumes(0)
}

fn restart_controller(cluster: &Cluster, spec: &TopolvmSpec) -> Result<()> {
    cluster.stop(CONTROLLER, GRACE)?;
    topolvm::start_controller(cluster, spec)
}

/// Returns a pod that can only run on this node.
fn pinned_pod(name: &str, node: &str, mode: VolumeMode) -> Value {
    let mut pod = pod(name, name, mode);
    pod["spec"]["nodeSelector"] = json!({"kubernetes.io/hostname": node});
    pod
}

fn use_full_node(fixture: &Fixture, roomy: &str) -> Result<()> {
    let full = fixture.node.name();
    let mut here = storage_class(TopoLvm, "here", None, true);
    let label = json!({"key": TopoLvm.topology_key(), "values": [full]});
    here["allowedTopologies"] = json!([{"matchLabelExpressions": [label]}]);
    fixture.apply(&here)?;
    fixture.apply(&claim("filling", "here", "7Gi", VolumeMode::Block))?;
    fixture.wait_bound("filling")?;
    let free = fixture.node.script(&format!("vgs --noheadings --nosuffix --units b -o vg_free {VG}"))?;
    fixture.wait_value("node", full, FREE, free.trim())?;

    // The one that fits goes where its pod goes
    fixture.apply(&claim("fits", "waiting", "2Gi", VolumeMode::Block))?;
    fixture.apply(&pinned_pod("fits", roomy, VolumeMode::Block))?;
    fixture.wait_ready("fits")?;

    fixture.apply(&claim("pinned", "waiting", "2Gi", VolumeMode::Block))?;
    fixture.apply(&pinned_pod("pinned", full, VolumeMode::Block))?;
    let event = fixture.wait_event_with("pinned", "ProvisioningFailed", "ResourceExhausted")?;
    ensure!(event.contains(full), "the event says: {event}");
    check_not_created(fixture, "pinned")?;

    // Free the space
    fixture.delete_claim("filling")?;
    fixture.wait_ready("pinned")?;
    let on = fixture.value(&logical_volume_resource(TopoLvm), &fixture.volume_name("pinned")?, ".spec.nodeName")?;
    ensure!(on == full, "the volume is on {on}");
    check_follows_no_volume(fixture, "pinned")?;

    // No node is selected for a volume with immediate binding: it goes to the node with space, whichever
    // csi-provisioner prefers
    fixture.apply(&claim("filling", "here", "5Gi", VolumeMode::Block))?;
    fixture.wait_bound("filling")?;
    let free = fixture.node.script(&format!("vgs --noheadings --nosuffix --units b -o vg_free {VG}"))?;
    fixture.wait_value("node", full, FREE, free.trim())?;
    for name in ["roomy-0", "roomy-1"] {
        fixture.apply(&claim(name, "immediate", "1280Mi", VolumeMode::Block))?;
        fixture.wait_bound(name)?;
        let on = fixture.value(&logical_volume_resource(TopoLvm), &fixture.volume_name(name)?, ".spec.nodeName")?;
        ensure!(on == roomy, "{name} is on {on}, which has no space");
        fixture.delete_claim(name)?;
    }
    fixture.delete_pod_and_claim("fits")?;
    fixture.delete_pod_and_claim("pinned")?;
    fixture.delete_claim("filling")?;
    fixture.kubectl(&["delete", "storageclass", "here"]).map(drop)
}

/// Clones a volume on the first node for a pod that is scheduled to the other. The copy is created on the first, and
/// the next pod follows it there.
fn copy_to_other_node(fixture: &Fixture, other: &str) -> Result<()> {
    let here = fixture.node.name();
    fixture.apply_claim("source", "thin", "256Mi")?;
    fixture.apply(&pinned_pod("source", here, VolumeMode::Filesystem))?;
    fixture.wait_ready("source")?;
    fixture.write_word("source", "kept")?;
    fixture.apply(&copied_claim("copy", "thin", "256Mi", DataSource::Claim("source")))?;
    fixture.apply(&pinned_pod("copy", other, VolumeMode::Filesystem))?;
    fixture.wait_bound("copy")?;
    let on = fixture.value(&logical_volume_resource(TopoLvm), &fixture.volume_name("copy")?, ".spec.nodeName")?;
    ensure!(on == here, "the copy is on {on}");
    fixture.delete_pod("copy")?;
    fixture.apply(&pod("copy", "copy", VolumeMode::Filesystem))?;
    fixture.wait_ready("copy")?;
    ensure!(fixture.read_word("copy")? == "kept", "the copy says {:?}", fixture.read_word("copy")?);
    fixture.delete_pod_and_claim("copy")?;
    fixture.delete_pod_and_claim("source")
}

/// Checks that the claim is Pending, and that no object of an attempt is left.
fn check_not_created(fixture: &Fixture, name: &str) -> Result<()> {
    let phase = fixture.value("pvc", name, ".status.phase")?;
    ensure!(phase == "Pending", "the claim {name} is {phase}");
    let volume = format!("pvc-{}", fixture.value("pvc", name, ".metadata.uid")?);
    let nodes = fixture.kubectl(&[
        "get",
        &logical_volume_resource(TopoLvm),
        "-o",
        "jsonpath={range .items[*]}{.metadata.name} {.spec.nodeName} {.status.volumeID}{\"\\n\"}{end}",
    ])?;
    let made: Vec<_> = nodes
        .lines()
        .filter(|line| line.starts_with(&volume) && line.split(' ').nth(2).is_some_and(|id| !id.is_empty()))
        .collect();
    ensure!(made.is_empty(), "there is a volume: {made:?}");
    check_follows_no_volume(fixture, name)
}

/// Checks that kube-scheduler never found the volume of a pod on another node than the chosen one.
fn check_follows_no_volume(fixture: &Fixture, pod: &str) -> Result<()> {
    let selector = format!("--field-selector=involvedObject.kind=Pod,involvedObject.name={pod}");
    let events = fixture.kubectl(&["get", "events", &selector, "-o", "jsonpath={.items[*].message}"])?;
    ensure!(!events.contains("node affinity doesn't match"), "events about {pod}: {events}");
    Ok(())
}
