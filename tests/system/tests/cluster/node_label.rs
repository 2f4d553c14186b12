//! Nodes that are selected by labels: one that gets the label is in service, one that loses it keeps its volumes and
//! gets no new ones, and is clean when the last of them is deleted.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use system_tests::commands::Commands;
use system_tests::manifests::{VolumeMode, claim, pod};
use system_tests::objects::Objects;
use system_tests::plugin;
use system_tests::shared::TestCluster;

use crate::cloud_disk;

const CLASS: &str = "topolvm-provisioner";
const TIMEOUT: &str = "--timeout=180s";
const PODS: [&str; 6] =
    ["get", "pods", "-n", "topolvm-system", "--selector", "app.kubernetes.io/component in (node, lvmd)"];
/// Free bytes of the default device class.
const CAPACITY: &str = ".metadata.annotations.capacity\\.topolvm\\.io/00default";
const HAS_VOLUMES: &str = ".metadata.labels.topolvm\\.io/has-volumes";

/// Runs the test in a cluster with one node and without the product.
pub(crate) fn check(shared: &TestCluster) -> Result<()> {
    let name = shared.node()?.name();
    let before = Objects::list(shared)?;
    let refused = run(shared, &["install", "--node-label"])?;
    ensure!(!refused.is_success && refused.errors.contains("topolvm.io/storage=enabled"), "{refused:?}");
    Objects::list(shared)?.ensure_same(&before)?;

    // The label of SuperEdge's guide is as good as ours
    shared.kubectl(&["label", "node", name, "superedge.io/local.pv=topolvm"])?;
    let config = shared.cluster.directory().join("lvmd.yaml");
    fs::write(&config, cloud_disk::LVMD_CONFIG).context("write the configuration of lvmd")?;
    let answer = run(shared, &["install", "--node-label", "--lvmd-config", &config.to_string_lossy()])?;
    ensure!(answer.is_success, "{answer:?}");
    cloud_disk::check(shared).context("a disk of a cloud")?;
    shared.apply(&claim("kept", CLASS, "512Mi", VolumeMode::Filesystem))?;
    shared.apply(&pod("kept", "kept", VolumeMode::Filesystem))?;
    shared.kubectl(&["wait", "--for=condition=Ready", "pod/kept", TIMEOUT])?;
    shared.wait_value("node", name, HAS_VOLUMES, "true")?;

    shared.kubectl(&["label", "node", name, "superedge.io/local.pv-"])?;
    keep_volumes_and_take_none(shared, name).context("a node without its label, with a volume")?;
    shared.kubectl(&["delete", "pod/kept", "pvc/kept", TIMEOUT])?;
    wait_until_clean(shared, name).context("a node without its label and without volumes")?;

    // Only the label is needed
    shared.kubectl(&["label", "node", name, "topolvm.io/storage=enabled"])?;
    shared.kubectl(&["wait", "--for=jsonpath={.status.phase}=Bound", "pvc/late", TIMEOUT])?;
    shared.kubectl(&["delete", "pod/late", "pvc/late", TIMEOUT])?;
    shared.kubectl(&["wait", "--for=delete", "persistentvolumes", "--all", TIMEOUT])?;
    let answer = run(shared, &["uninstall"])?;
    ensure!(answer.is_success, "{answer:?}");
    shared.kubectl(&["label", "node", name, "topolvm.io/storage-"])?;
    Objects::list(shared)?.ensure_same(&before)?;

    // In an empty cluster a label and an installation, which tests a claim, are enough
    let page = Commands::of("node-selection.md", "Nodes with storage, selected by a label")?;
    page.with("node1", name)?.run(&shared.cluster)?;
    plugin::run_successfully(&shared.cluster, &["uninstall"])?;
    shared.kubectl(&["label", "node", name, "topolvm.io/storage-"]).map(drop)
}

/// The agent and lvmd stay, the volume stays and grows, and a new one finds no space.
fn keep_volumes_and_take_none(shared: &TestCluster, node: &str) -> Result<()> {
    shared.wait_value("node", node, CAPACITY, "0")?;
    shared.apply(&claim("late", CLASS, "512Mi", VolumeMode::Filesystem))?;
    shared.apply(&pod("late", "late", VolumeMode::Filesystem))?;
    let size = r#"{"spec":{"resources":{"requests":{"storage":"1Gi"}}}}"#;
    shared.kubectl(&["patch", "pvc", "kept", "-p", size])?;
    shared.wait_value("pvc", "kept", ".status.capacity.storage", "1Gi")?;
    let pods = shared.kubectl(&PODS)?;
    ensure!(pods.matches("Running").count() == 2, "{pods}");
    shared.wait_value("pod", "late", ".status.conditions[?(@.type==\"PodScheduled\")].status", "False")?;
    let bound = shared.value("pvc", "late", ".spec.volumeName")?;
    ensure!(bound.is_empty(), "a volume was made on a node that takes none: {bound}");
    Ok(())
}

fn wait_until_clean(shared: &TestCluster, name: &str) -> Result<()> {
    shared.cluster.ready("apiserver", || {
        let text = shared.kubectl(&["get", "node", name, "-o", "json"])?;
        let node: Value = serde_json::from_str(&text)?;
        let metadata = &node["metadata"];
        // kubelet writes the names of drivers into its own annotation
        let marks = [&metadata["labels"], &metadata["finalizers"]].map(ToString::to_string).concat();
        ensure!(!marks.contains("topolvm.io"), "marks of the Node: {marks}");
        let annotations = metadata["annotations"].as_object().context("no annotations")?;
        let ours: Vec<_> = annotations.keys().filter(|key| key.contains("topolvm.io")).collect();
        ensure!(ours.is_empty(), "annotations of the Node: {ours:?}");
        let drivers = shared.value("csinode", name, ".spec.drivers[*].name")?;
        ensure!(drivers.is_empty(), "drivers of the CSINode: {drivers}");
        let pods = shared.kubectl(&[&PODS[..], &["-o", "name"]].concat())?;
        ensure!(pods.is_empty(), "pods: {pods}");
        Ok(())
    })
}

fn run(shared: &TestCluster, arguments: &[&str]) -> Result<plugin::Answer> {
    plugin::run(&shared.cluster, &shared.cluster.inner_kubeconfig(), arguments)
}
