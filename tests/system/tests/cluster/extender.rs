//! Two nodes of different sizes under a real kube-scheduler with the extender, and pods that the webhook marks: each
//! pod goes to a node with space for its volume, reports the reason if there is none, and runs when an administrator
//! extends a volume group. The last step also runs with storage capacity tracking.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use system_tests::kustomization::{Kustomization, patch};
use system_tests::manifests::{VolumeMode, claim, pod, webhook_endpoints};
use system_tests::scheduling::{EXTENDER, options_of_overlays, start_extender, stop_extender};
use testbed::assets;
use testbed::failure::WithState as _;
use testbed::kubeconfig::Credential;
use testbed::network::GATEWAY;
use testbed::node::{Node, NodeSpec};
use testbed::sidecars::NAMESPACE;
use testbed::size::GIB;
use testbed::topolvm::{self, CONTROLLER, TopolvmSpec, account_token};
use topolvm_api::ApiFlavor::TopoLvm;

use crate::Body;
use crate::fixture::{Fixture, VG};
use crate::scheduling::FREE;

/// Disk of the second node that is in no volume group at first.
const SPARE_DISK: &str = "/dev/ubdd";
/// kube-scheduler's message about a node that is too small, in either mode.
const TOO_SMALL: &str = "did not have enough free storage";
const REFUSED: &str = "out of VG free space";

pub(crate) fn tests() -> Vec<(String, Body)> {
    let name = "extender_selects_nodes_with_space_and_pod_runs_once_vg_grows";
    vec![(name.to_owned(), place_on_two_nodes)]
}

fn place_on_two_nodes(fixture: &Fixture) -> Result<()> {
    let spec = NodeSpec { vg_disks: vec![12 * GIB], spare_disks: vec![8 * GIB], ..NodeSpec::number(2) };
    let node = fixture.cluster.add_node(&spec)?;
    // It has none of the further device classes
    let done = topolvm::start_node_programs(&fixture.cluster, &node, &TopolvmSpec::nodes(1)?)
        .and_then(|()| topolvm::wait_for_driver(&fixture.cluster, &node, TopoLvm))
        .and_then(|()| wait_free(fixture, &node))
        .and_then(|()| extend_group(fixture, &node, TOO_SMALL).context("with storage capacity tracking"))
        .and_then(|()| with_extender(fixture, || choose_nodes(fixture, &node)).context("with the extender"));
    if fixture.cluster.node_names()?.iter().any(|name| name == node.name()) {
        remove(fixture, &node)?;
    }
    done?;
    fixture.check_volumes(0)
}

/// Extends the volume group of the second node while a pod waits because no node has enough space, deletes the pod and
/// reduces the volume group to its former size.
fn extend_group(fixture: &Fixture, node: &Node, words: &str) -> Result<()> {
    fixture.apply(&claim("large", "waiting", "16Gi", VolumeMode::Block))?;
    fixture.apply(&pod("large", "large", VolumeMode::Block))?;
    fixture.wait_event_with("large", "FailedScheduling", words)?;
    node.script(&format!("vgextend -qqy {VG} {SPARE_DISK}"))?;
    if assets::is_oldest_kubernetes() {
        // There an annotation of a Node is no reason to try again before five minutes are over
        wait_free(fixture, node)?;
        fixture.delete_pod("large")?;
        fixture.apply(&pod("large", "large", VolumeMode::Block))?;
    }
    wait_on(fixture, "large", node)?;
    fixture.delete_pod_and_claim("large")?;
    node.script(&format!("vgreduce -qqy {VG} {SPARE_DISK}"))?;
    wait_free(fixture, node)
}

/// Checks where pods go with the extender, and then without the second node.
fn choose_nodes(fixture: &Fixture, node: &Node) -> Result<()> {
    for (name, class, size) in [("nowhere", "waiting", "32Gi"), ("fits", "waiting", "10Gi"), ("pooled", "thin", "9Gi")]
    {
        fixture.apply(&claim(name, class, size, VolumeMode::Block))?;
        fixture.apply(&pod(name, name, VolumeMode::Block))?;
        let marker = r".spec.containers[0].resources.requests.topolvm\.io/capacity";
        ensure!(fixture.value("pod", name, marker)? == "1", "the webhook has not marked {name}");
    }
    fixture.wait_event_with("nowhere", "FailedScheduling", &format!("0/2 nodes are available: 2 {REFUSED}"))?;
    wait_on(fixture, "fits", node)?;
    // Of another class than the one without space for the first
    wait_on(fixture, "pooled", &fixture.node)?;
    let phase = fixture.value("pvc", "nowhere", ".status.phase")?;
    ensure!(phase == "Pending", "the claim that fits nowhere is {phase}");
    for name in ["nowhere", "fits", "pooled"] {
        fixture.delete_pod_and_claim(name)?;
    }
    wait_free(fixture, node)?;
    extend_group(fixture, node, &format!("2 {REFUSED}"))?;

    remove(fixture, node)?;
    fixture.apply(&claim("homeless", "waiting", "10Gi", VolumeMode::Block))?;
    fixture.apply(&pod("homeless", "homeless", VolumeMode::Block))?;
    fixture.wait_event_with("homeless", "FailedScheduling", &format!("0/1 nodes are available: 1 {REFUSED}"))?;
    fixture.delete_pod_and_claim("homeless")
}

/// Removes a node whose volumes are deleted, so that no program waits for it.
fn remove(fixture: &Fixture, node: &Node) -> Result<()> {
    fixture.kubectl(&["delete", "node", node.name(), "--timeout=180s"])?;
    node.down()
}

/// Waits until the pod runs, and checks its node.
fn wait_on(fixture: &Fixture, pod: &str, node: &Node) -> Result<()> {
    fixture.wait_ready(pod)?;
    let on = fixture.value("pod", pod, ".spec.nodeName")?;
    ensure!(on == node.name(), "{pod} runs on {on} and not on {}", node.name());
    Ok(())
}

/// Waits until the annotation of a node shows the free space of LVM.
fn wait_free(fixture: &Fixture, node: &Node) -> Result<()> {
    let free = node.script(&format!("vgs --noheadings --nosuffix --units b -o vg_free {VG}"))?;
    fixture.wait_value("node", node.name(), FREE, free.trim())
}

/// Runs `body` with webhooks, the extender and a kube-scheduler that is proven to call it.
fn with_extender(fixture: &Fixture, body: impl FnOnce() -> Result<()>) -> Result<()> {
    let cluster = &fixture.cluster;
    let scratch = tempfile::Builder::new().prefix("topolvm-extender-").tempdir_in("/var/tmp")?;
    let mut spec = fixture.spec.clone();
    spec.manifests = write_manifests(scratch.path())?;
    let flags = ["--scheduling-mode=extender", "--enable-webhooks", "--extender-probe-interval=1s"];
    spec.controller_arguments.extend(flags.map(str::to_owned));
    spec.controller_arguments.push(format!("--webhook-namespace={NAMESPACE}"));
    let nothing = || Ok(());
    let done = fixture.run_with_spec(&spec, nothing, || {
        let kubeconfig = cluster.directory().join("extender.kubeconfig");
        cluster.write_kubeconfig(&kubeconfig, &Credential::Token(&account_token(cluster, EXTENDER, None)?))?;
        let done = start_extender(cluster, &spec.programs, &options_of_overlays(), &kubeconfig)
            .and_then(|()| wait_for_mark(fixture))
            .and_then(|()| body())
            .with_state(|| log_of_extender(fixture));
        stop_extender(cluster)?;
        // No program serves it any more
        fixture.kubectl(&["delete", "mutatingwebhookconfiguration", "topolvm-hook"])?;
        done
    });
    fixture.kubectl(&["delete", "service", "topolvm-controller", "-n", NAMESPACE])?;
    done
}

/// Writes the manifests of the mode. The controller is no pod, so that its Service needs its address.
fn write_manifests(directory: &Path) -> Result<PathBuf> {
    let without_selector = json!([{"op": "remove", "path": "/spec/selector"}]);
    fs::write(directory.join("endpoints.yaml"), webhook_endpoints(&[GATEWAY])).context("write the endpoints")?;
    Kustomization {
        base: "base",
        components: &["webhooks", "certificate-self-managed", "scheduler-daemonset"],
        resources: &["endpoints.yaml"],
        patches: vec![patch("Service", Some("topolvm-controller"), &without_selector)],
    }
    .write(directory)
}

/// Waits until the webhook marks pods: the API server trusts it, and kube-scheduler is proven to call the extender.
fn wait_for_mark(fixture: &Fixture) -> Result<()> {
    fixture.apply(&claim("tried", "waiting", "1Gi", VolumeMode::Block))?;
    let file = fixture.cluster.directory().join("tried.json");
    fs::write(&file, pod("tried", "tried", VolumeMode::Block).to_string()).context("write a pod")?;
    let file = file.to_string_lossy().into_owned();
    fixture.cluster.ready(CONTROLLER, || {
        let tried = fixture.kubectl(&["create", "--dry-run=server", "-o", "json", "-f", &file])?;
        let tried: Value = serde_json::from_str(&tried).context("kubectl prints no JSON")?;
        let requests = &tried["spec"]["containers"][0]["resources"]["requests"];
        ensure!(requests["topolvm.io/capacity"] == "1", "the pod requests {requests}");
        Ok(())
    })?;
    fixture.kubectl(&["delete", "pvc", "tried", "--timeout=180s"]).map(drop)
}

fn log_of_extender(fixture: &Fixture) -> String {
    let log = fs::read_to_string(fixture.cluster.log(EXTENDER)).unwrap_or_default();
    let last: Vec<_> = log.lines().rev().take(10).collect();
    format!("topolvm-scheduler, last line first:\n{}", last.join("\n"))
}
