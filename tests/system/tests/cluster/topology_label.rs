//! The topology label of a Node that a node pool or an administrator has changed: the agent corrects it, whether it
//! runs at that time or starts afterwards, and pods with volumes run. Two Nodes with one value get no volume.

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use system_tests::manifests::{VolumeMode, pod};
use system_tests::plugin;
use topolvm_api::ApiFlavor::TopoLvm;

use crate::Body;
use crate::fixture::Fixture;

const TIMEOUT: &str = "--timeout=180s";

pub(crate) fn tests() -> Vec<(String, Body)> {
    vec![("topology_label_that_is_wrong_or_gone_is_corrected".to_owned(), correct_label)]
}

fn correct_label(fixture: &Fixture) -> Result<()> {
    let key = TopoLvm.topology_key();
    let node = fixture.node.name();
    for (number, label) in [format!("{key}=elsewhere"), format!("{key}-")].into_iter().enumerate() {
        fixture.kubectl(&["label", "node", node, &label, "--overwrite"])?;
        wait_corrected(fixture).context("while the agent runs")?;
        start_pod(fixture, &format!("running-{number}")).context("while the agent runs")?;

        // As while the machine is renamed: kubelet refuses to register the driver again
        fixture.node.script("pkill -STOP -x topolvm-node")?;
        fixture.kubectl(&["label", "node", node, &label, "--overwrite"])?;
        let found = format!("Node {node} has {} label {key}", if label.ends_with('-') { "no" } else { "the" });
        let command = format!("kubectl label node {node} {key}={node} --overwrite");
        plugin::wait_for_findings(&fixture.cluster, "topology-labels", &[(&found, &command)])?;
        fixture.node.kill_kept("topolvm-node")?;
        wait_corrected(fixture).context("after a restart of the agent")?;
        start_pod(fixture, &format!("restarted-{number}")).context("after a restart of the agent")?;
    }
    for words in [format!("the label {key} was \"elsewhere\""), format!("the label {key} was missing")] {
        fixture.wait_event_with(node, "TopologyLabelCorrected", &words)?;
    }
    plugin::wait_until_ok(&fixture.cluster, "topology-labels")?;
    share_label(fixture, key).context("two Nodes with one value")
}

/// Gives another Node the label of the node. Its pods could have the volume, too, and no agent corrects it.
fn share_label(fixture: &Fixture, key: &str) -> Result<()> {
    let name = fixture.node.name();
    fixture.apply(&json!({
        "apiVersion": "v1", "kind": "Node", "metadata": {"name": "impostor", "labels": {key: name}},
    }))?;
    fixture.apply_claim("shared", "waiting", "64Mi")?;
    fixture.apply(&pod("shared", "shared", VolumeMode::Filesystem))?;
    let command = format!("kubectl label node impostor {key}=impostor --overwrite");
    let said = fixture.wait_event_with("shared", "ProvisioningFailed", &command)?;
    ensure!(said.contains(&format!("Node impostor has the label {key}={name}")), "{said}");
    fixture.kubectl(&["delete", "node", "impostor", TIMEOUT])?;
    fixture.wait_ready("shared")?;
    fixture.delete_pod_and_claim("shared")
}

fn wait_corrected(fixture: &Fixture) -> Result<()> {
    let name = fixture.node.name();
    fixture.wait_value("node", name, ".metadata.labels.topology\\.topolvm\\.io/node", name)
}

/// Starts a pod with a new volume, which has to be on the node.
fn start_pod(fixture: &Fixture, name: &str) -> Result<()> {
    fixture.apply_claim(name, "waiting", "64Mi")?;
    fixture.start_pod(name, VolumeMode::Filesystem)?;
    let volume = fixture.volume_name(name)?;
    let node = fixture.value("logicalvolumes.topolvm.io", &volume, ".spec.nodeName")?;
    ensure!(node == fixture.node.name(), "the volume is on node {node}");
    fixture.delete_pod_and_claim(name)
}
