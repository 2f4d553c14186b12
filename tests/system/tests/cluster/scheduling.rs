//! Scheduling of pods and placement of volumes: kube-scheduler goes by free space, and pods follow their volumes.

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use system_tests::commands::Commands;
use system_tests::manifests::{VolumeMode, claim, pod, storage_class};
use testbed::node::{Node, NodeSpec};
use testbed::size::GIB;
use testbed::topolvm::{self, TopolvmSpec};
use topolvm_api::ApiFlavor::TopoLvm;

use crate::Body;
use crate::fixture::{Fixture, VG};

pub(crate) fn tests() -> Vec<(String, Body)> {
    let all: [(&str, Body); 5] = [
        ("pod_without_a_fitting_node_stays_pending_and_others_run", schedule_where_nothing_fits),
        ("pod_runs_once_the_volume_that_took_its_space_is_deleted", schedule_when_space_is_freed),
        ("immediate_volumes_go_to_nodes_with_space_and_pods_follow", bind_where_space_is),
        ("immediate_volumes_follow_the_node_strategy", bind_by_strategy),
        ("read_write_once_pod_claim_blocks_a_second_pod", use_by_one_pod),
    ];
    all.map(|(name, body)| (name.to_owned(), body)).into()
}

fn schedule_where_nothing_fits(fixture: &Fixture) -> Result<()> {
    fixture.apply(&storage_class(TopoLvm, "nowhere", Some("no-such-class"), false))?;
    for (name, class, size) in [("large", "waiting", "9Gi"), ("lost", "nowhere", "1Gi"), ("fits", "thin", "9Gi")] {
        fixture.apply_claim(name, class, size)?;
        fixture.apply(&pod(name, name, VolumeMode::Filesystem))?;
    }
    for name in ["large", "lost"] {
        fixture.wait_event_with(name, "FailedScheduling", "did not have enough free storage")?;
    }
    fixture.wait_ready("fits")?;
    for name in ["large", "lost"] {
        let phase = fixture.kubectl(&["get", "pvc", name, "-o", "jsonpath={.status.phase}"])?;
        ensure!(phase == "Pending", "the claim {name} is {phase}");
        fixture.delete_pod_and_claim(name)?;
    }
    fixture.delete_pod_and_claim("fits")?;
    fixture.kubectl(&["delete", "storageclass", "nowhere"])?;
    fixture.wait_no_volumes()
}

/// Starts a second pod when the first one's volume is deleted. The volumes are devices: they are too large to create
/// filesystems.
fn schedule_when_space_is_freed(fixture: &Fixture) -> Result<()> {
    for (name, size) in [("early", "5Gi"), ("late", "4Gi")] {
        fixture.apply(&claim(name, "waiting", size, VolumeMode::Block))?;
    }
    fixture.start_pod("early", VolumeMode::Block)?;
    fixture.apply(&pod("late", "late", VolumeMode::Block))?;
    // kube-scheduler may notice the smaller free space only by the failure to create the volume
    fixture.wait_event_with("late", "FailedScheduling", "did not have enough free storage")?;
    let phase = fixture.value("pvc", "late", ".status.phase")?;
    ensure!(phase == "Pending", "the claim is {phase}");
    fixture.delete_pod_and_claim("early")?;
    fixture.wait_ready("late")?;
    fixture.check_volumes(1)?;
    fixture.delete_pod_and_claim("late")?;
    fixture.check_volumes(0)
}

/// Runs `body` with a second node, which has more free space.
fn with_larger_node(fixture: &Fixture, body: impl FnOnce(&Node) -> Result<()>) -> Result<()> {
    let spec = NodeSpec { vg_disks: vec![12 * GIB], ..NodeSpec::number(2) };
    let node = fixture.cluster.add_node(&spec)?;
    let done = start_programs(fixture, &node).and_then(|()| body(&node));
    // Its last volumes are deleted, so no program waits for it
    fixture.kubectl(&["delete", "node", node.name(), "--timeout=180s"])?;
    node.down()?;
    done?;
    fixture.check_volumes(0)
}

fn start_programs(fixture: &Fixture, node: &Node) -> Result<()> {
    // It has none of the further device classes
    topolvm::start_node_programs(&fixture.cluster, node, &TopolvmSpec::nodes(1)?)?;
    topolvm::wait_for_driver(&fixture.cluster, node, TopoLvm)?;
    fixture.wait_value_present("node", node.name(), FREE)
}

/// Returns the node of a claim's volume.
fn node_of(fixture: &Fixture, claim: &str) -> Result<String> {
    fixture.wait_bound(claim)?;
    let path = ".spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0].values[0]";
    fixture.value("pv", &fixture.volume_name(claim)?, path)
}

/// Places volumes that bind at once by both strategies. csi-provisioner prefers one node after the other for them.
fn bind_by_strategy(fixture: &Fixture) -> Result<()> {
    with_larger_node(fixture, |node| {
        for (strategy, expected) in [("spread", node.name()), ("binpack", fixture.node.name())] {
            let mut spec = fixture.spec.clone();
            spec.controller_arguments.push(format!("--node-strategy={strategy}"));
            let place = || {
                let claims: Vec<_> = (0..4).map(|number| format!("{strategy}-{number}")).collect();
                for name in &claims {
                    fixture.apply(&claim(name, "immediate", "64Mi", VolumeMode::Block))?;
                }
                for name in &claims {
                    let on = node_of(fixture, name)?;
                    ensure!(on == expected, "with {strategy} {name} is on {on}");
                }
                claims.iter().try_for_each(|name| fixture.delete_claim(name))
            };
            fixture.run_with_spec(&spec, || Ok(()), place)?;
        }
        Ok(())
    })
}

/// Places volumes with a second node that has more free space.
fn bind_where_space_is(fixture: &Fixture) -> Result<()> {
    with_larger_node(fixture, |node| check_placement(fixture, node))
}

/// Checks the nodes of volumes with immediate binding. csi-provisioner prefers the nodes in turn for claims whose names
/// end in consecutive numbers, regardless of free space. The first two claims show this order where all nodes have
/// space. The others fit on the new node only, although it prefers the other node for every second of them.
fn check_placement(fixture: &Fixture, node: &Node) -> Result<()> {
    let numbered = |name: &str, count: usize| -> Vec<String> { (0..count).map(|n| format!("{name}-{n}")).collect() };
    let immediate = |name: &str, size: &str| fixture.apply(&claim(name, "immediate", size, VolumeMode::Block));
    let on = |claim: &str| node_of(fixture, claim);
    let either = numbered("either", 2);
    for claim in &either {
        immediate(claim, "64Mi")?;
    }
    let nodes = [on(&either[0])?, on(&either[1])?];
    ensure!(nodes[0] != nodes[1], "neither is preferred: both are on {}", nodes[0]);

    // The rest of 8 GiB is less than the request of each of the others, and is published
    let here = json!({"key": TopoLvm.topology_key(), "values": [fixture.node.name()]});
    let mut pinned = storage_class(TopoLvm, "here", None, true);
    pinned["allowedTopologies"] = json!([{"matchLabelExpressions": [here]}]);
    fixture.apply(&pinned)?;
    fixture.apply(&claim("filling", "here", "7Gi", VolumeMode::Block))?;
    ensure!(on("filling")? == fixture.node.name(), "the claim for the first node is elsewhere");
    let free = || fixture.node.script(&format!("vgs --noheadings --nosuffix --units b -o vg_free {VG}"));
    fixture.wait_value("node", fixture.node.name(), FREE, free()?.trim())?;
    let roomy = numbered("roomy", 6);
    for claim in &roomy {
        immediate(claim, "1280Mi")?;
    }
    for claim in &roomy {
        let on = on(claim)?;
        ensure!(on == node.name(), "{claim} is on {on}, which has no space");
        let failed = format!("--field-selector=reason=ProvisioningFailed,involvedObject.name={claim}");
        let failures = fixture.kubectl(&["get", "events", &failed, "-o", "jsonpath={.items[*].message}"])?;
        ensure!(failures.is_empty(), "not at the first try: {failures}");
    }

    // Only the new node has so much for a pod that comes before its volume
    fixture.apply(&claim("large", "waiting", "3Gi", VolumeMode::Block))?;
    let pods = ["roomy-0", "roomy-1", "large"];
    for name in pods {
        fixture.apply(&pod(name, name, VolumeMode::Block))?;
    }
    for name in pods {
        fixture.wait_ready(name)?;
        let on = fixture.value("pod", name, ".spec.nodeName")?;
        ensure!(on == node.name(), "{name} runs on {on}");
    }
    start_named_pod(fixture, node)?;
    let volumes = node.script(&format!("lvs --noheadings -o lv_name {VG}"))?;
    ensure!(volumes.split_whitespace().count() == roomy.len() + 3, "LVs of the new node: {volumes}");
    for name in pods {
        fixture.delete_pod(name)?;
    }
    fixture.delete_pod("named")?;
    for claim in either.iter().chain(&roomy).map(String::as_str).chain(["filling", "large", "named"]) {
        fixture.delete_claim(claim)?;
    }
    fixture.kubectl(&["delete", "storageclass", "here"]).map(drop)
}

/// Starts a pod that names its node, which the scheduler does not see, so that an administrator selects the node of its
/// claim, as in docs/limits.md.
fn start_named_pod(fixture: &Fixture, node: &Node) -> Result<()> {
    let mut named = pod("named", "named", VolumeMode::Block);
    named["spec"]["nodeName"] = json!(node.name());
    fixture.apply(&claim("named", "waiting", "64Mi", VolumeMode::Block))?;
    fixture.apply(&named)?;
    let phase = fixture.value("pvc", "named", ".status.phase")?;
    ensure!(phase == "Pending", "the claim is {phase} although no node is selected");
    let select = Commands::of("limits.md", "Pods with `spec.nodeName`, and claims without a pod")?;
    select.with("CLAIM=data NODE=node1", &format!("CLAIM=named NODE={}", node.name()))?.run(&fixture.cluster)?;
    fixture.wait_ready("named")
}

/// JSONPath of the free bytes of a node's default device class.
pub(crate) const FREE: &str = r".metadata.annotations.capacity\.topolvm\.io/00default";

fn use_by_one_pod(fixture: &Fixture) -> Result<()> {
    let mut only = claim("only", "waiting", "64Mi", VolumeMode::Filesystem);
    *only.pointer_mut("/spec/accessModes").context("a claim has access modes")? = json!(["ReadWriteOncePod"]);
    fixture.apply(&only)?;
    fixture.start_pod("only", VolumeMode::Filesystem)?;
    fixture.apply(&pod("second", "only", VolumeMode::Filesystem))?;
    fixture.wait_event_with("second", "FailedScheduling", "ReadWriteOncePod")?;
    // After the first pod is deleted the second one runs
    fixture.delete_pod("only")?;
    fixture.wait_ready("second")?;
    fixture.delete_pod("second")?;
    fixture.delete_claim("only")?;
    fixture.check_volumes(0)
}
