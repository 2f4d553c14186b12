//! Overlays that are applied one after the other to the same cluster, each with the main use case: lvmd in the agent
//! together with the extender next to kube-scheduler, the same with lvmd on the host, the extender behind its Service,
//! a certificate from a Secret, the older API group without snapshots, and all of TopoLVM's first guides.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::ByteString;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::json;
use system_tests::commands::Commands;
use system_tests::kustomization::{Kustomization, patch};
use system_tests::manifests::{VolumeMode, claim, pod};
use system_tests::scenario::Scenario;
use system_tests::shared::TestCluster;
use testbed::cluster::SCHEDULER_PROCESS;
use testbed::node::Node;
use testbed::sidecars::{NAMESPACE, Sidecar};
use testbed::topolvm::{self, manifests};
use topolvm_api::ApiFlavor::{self, Legacy, TopoLvm};

use super::{CLASS, start_lvmd_on_the_host};
use crate::job::SilentReporter;
use crate::kube_scheduler;

/// Replaces the overlay `lvmd`, without volumes, by those with the extender.
pub(super) fn use_extender(shared: &TestCluster, node: &Node, scratch: &Path) -> Result<()> {
    use_embedded_with_extender(shared, node, scratch)
        .context("embedded-lvmd with the extender next to kube-scheduler")?;
    start_lvmd_on_the_host(node)?;
    topolvm::roll_out(&shared.cluster, &manifests().join("overlays/daemonset-scheduler"))?;
    remove_extended_resources(shared, node)?;
    run_scenario(shared, node, TopoLvm).context("daemonset-scheduler")?;
    use_extender_behind_service(shared, node).context("deployment-scheduler")?;
    use_certificate_from_secret(shared, node, scratch).context("extender-manual-secret")
}

fn use_embedded_with_extender(shared: &TestCluster, node: &Node, scratch: &Path) -> Result<()> {
    let components = ["webhooks", "certificate-self-managed", "scheduler-daemonset", "extended-resources"];
    let kustomization =
        Kustomization { base: "overlays/embedded-lvmd", components: &components, ..Kustomization::default() };
    shared.kubectl(&["label", "node", node.name(), "node-role.kubernetes.io/control-plane="])?;
    topolvm::roll_out(&shared.cluster, &kustomization.write(&scratch.join("extender"))?)?;
    delete(shared, &["daemonset/topolvm-lvmd"])?;
    kube_scheduler::move_to(shared, node, "scheduler-config.yaml")?;
    kube_scheduler::wait_for_webhook(shared)?;
    kube_scheduler::wait_for_proof(shared)?;
    run_scenario(shared, node, TopoLvm)?;
    let said = shared.kubectl(&["logs", "-n", NAMESPACE, "daemonset/topolvm-scheduler", "--tail=-1"])?;
    ensure!(said.contains(r#""url":"/predicate""#), "kube-scheduler has not asked: {said}");
    check_extended_resources(shared, node)
}

/// Waits until the status of the Node has size and free space of the default class, for kubelet's eyes, too.
fn check_extended_resources(shared: &TestCluster, node: &Node) -> Result<()> {
    let script = "vgs --noheadings --units b --nosuffix --options vg_size,vg_free myvg1";
    let said = node.script(script)?;
    let (size, free) = said.trim().split_once(char::is_whitespace).context("vgs says nothing")?;
    // 10 GiB are spare
    let free = free.trim().parse::<u64>()?.saturating_sub(10 << 30);
    for list in ["capacity", "allocatable"] {
        for (prefix, bytes) in [("size", size.to_owned()), ("free", free.to_string())] {
            let path = format!("jsonpath={{.status.{list}.{prefix}\\.topolvm\\.io/ssd}}");
            shared.cluster.ready("apiserver", || {
                let shown = shared.kubectl(&["get", "node", node.name(), "-o", &path])?;
                let shown = topolvm_api::parse_bytes(&Quantity(shown))?;
                ensure!(shown.to_string() == bytes, "{list} {prefix} is {shown} and not {bytes}");
                Ok(())
            })?;
        }
    }
    Ok(())
}

/// Takes the resources of a class away after the agent has stopped showing them; kubelet follows.
fn remove_extended_resources(shared: &TestCluster, node: &Node) -> Result<()> {
    let removal = Commands::of("node-storage.md", "In the status of the Node")?.with("NODE", node.name())?;
    removal.run(&shared.cluster)?;
    shared.cluster.ready("apiserver", || {
        let lists = "jsonpath={.status.capacity}{.status.allocatable}";
        let shown = shared.kubectl(&["get", "node", node.name(), "-o", lists])?;
        ensure!(shown.contains("topolvm.io/00default"), "the other resources of the Node are gone: {shown}");
        ensure!(!shown.contains("topolvm.io/ssd"), "the resources are there still: {shown}");
        Ok(())
    })
}

fn use_extender_behind_service(shared: &TestCluster, node: &Node) -> Result<()> {
    topolvm::roll_out(&shared.cluster, &manifests().join("overlays/deployment-scheduler"))?;
    delete(shared, &["daemonset/topolvm-scheduler"])?;
    // There is neither DNS nor kube-proxy, so that the name leads to the pods behind the Service; the port is the same
    let addresses = shared.cluster.ready("apiserver", || {
        let slices = ["get", "endpointslices", "-n", NAMESPACE, "-l", "kubernetes.io/service-name=topolvm-scheduler"];
        let format = ["-o", "jsonpath={.items[*].endpoints[*].addresses[0]}"];
        let addresses = shared.kubectl(&[&slices[..], &format].concat())?;
        ensure!(addresses.split(' ').count() == 2, "the pods behind the Service: {addresses:?}");
        Ok(addresses)
    })?;
    for address in addresses.split(' ') {
        node.script(&format!("echo {address} topolvm-scheduler.{NAMESPACE}.svc >>/etc/hosts"))?;
    }
    node.stop_kept(kube_scheduler::NAME)?;
    kube_scheduler::start(shared, node, "scheduler-config-service.yaml")?;
    run_scenario(shared, node, TopoLvm)?;
    let mut fits = 0;
    for address in addresses.split(' ') {
        let metrics =
            shared.cluster.command("curl").args(["-sf", &format!("http://{address}:8080/metrics")]).output()?;
        let metrics = String::from_utf8_lossy(&metrics.stdout).into_owned();
        let counts = metrics.lines().filter_map(|line| {
            line.strip_prefix(r#"topolvm_scheduler_node_results_total{result="fits"} "#)?.parse::<u32>().ok()
        });
        fits += counts.sum::<u32>();
    }
    // Once: the recreated pod has to run on the node of its volume
    ensure!(fits >= 1, "kube-scheduler has not asked behind the Service");
    Ok(())
}

/// Applies the overlay with a certificate of the administrator's own authority; the scheduler of the overlay before
/// stays.
fn use_certificate_from_secret(shared: &TestCluster, node: &Node, scratch: &Path) -> Result<()> {
    let pki = shared.cluster.pki();
    let name = format!("topolvm-controller.{NAMESPACE}.svc");
    pki.server("webhook", None, &[&name], &[])?.write(scratch, "tls")?;
    Commands::of("webhooks.md", "Install the webhooks")?.run_in(&shared.cluster, scratch)?;
    let authority = ByteString(pki.authority().as_bytes().to_vec());
    let path = "/webhooks/0/clientConfig/caBundle";
    let authority = json!([{"op": "add", "path": path, "value": authority}]);
    let patches = vec![patch("MutatingWebhookConfiguration", Some("topolvm-hook"), &authority)];
    let kustomization = Kustomization { base: "overlays/extender-manual-secret", patches, ..Kustomization::default() };
    let directory = kustomization.write(&scratch.join("secret"))?;
    // Old pods write the authority of their own certificate while they run, so it is applied again after they end
    topolvm::roll_out(&shared.cluster, &directory)?;
    super::wait_for_old_controllers(shared)?;
    topolvm::roll_out(&shared.cluster, &directory)?;
    kube_scheduler::wait_for_webhook(shared)?;
    run_scenario(shared, node, TopoLvm)
}

/// Applies the overlay of the older API group after the others, with storage capacity tracking again, so that the
/// webhook must not be called any more; in a cluster without snapshots.
pub(super) fn use_older_group(shared: &TestCluster, node: &Node) -> Result<()> {
    node.stop_kept(kube_scheduler::NAME)?;
    shared.cluster.spawn(SCHEDULER_PROCESS, &shared.cluster.scheduler_command())?;
    Commands::of("switching.md", "Switch over")?.run(&shared.cluster)?;
    delete(shared, &["deployment/topolvm-scheduler", "service/topolvm-scheduler"])?;
    Sidecar::SnapshotController.stop(&shared.cluster)?;
    let snapshots = ["volumesnapshots", "volumesnapshotcontents", "volumesnapshotclasses"];
    let definitions = snapshots.map(|plural| format!("crd/{plural}.snapshot.storage.k8s.io"));
    shared.kubectl(&[&["delete", "--timeout=180s"][..], &definitions.each_ref().map(String::as_str)].concat())?;
    topolvm::roll_out(&shared.cluster, &manifests().join("overlays/legacy"))?;
    topolvm::wait_for_driver(&shared.cluster, node, Legacy)?;
    run_scenario(shared, node, Legacy).context("legacy")
}

/// Applies the overlay of TopoLVM's first guides as it is, with the shipped configuration of kube-scheduler for the
/// older API group: the webhooks for pods and claims, the extender, and lvmd, which waits for that of the host.
pub(super) fn use_oldest_guide(shared: &TestCluster, node: &Node) -> Result<()> {
    topolvm::roll_out(&shared.cluster, &manifests().join("overlays/legacy-extender"))?;
    shared.cluster.stop(SCHEDULER_PROCESS, Duration::ZERO)?;
    kube_scheduler::start(shared, node, "scheduler-config-legacy.yaml")?;
    kube_scheduler::wait_for_webhook(shared)?;
    kube_scheduler::wait_for_proof(shared)?;
    run_scenario(shared, node, Legacy).context("legacy-extender")?;
    let said = shared.kubectl(&["logs", "-n", NAMESPACE, "daemonset/topolvm-scheduler", "--tail=-1"])?;
    ensure!(said.contains(r#""url":"/predicate""#), "kube-scheduler has not asked: {said}");

    // The same name, and a provisioner cannot be changed
    shared.kubectl(&["delete", "storageclass", CLASS, "--ignore-not-found"])?;
    let storage_class = manifests().join("components/legacy/storageclass.yaml");
    shared.kubectl(&["apply", "-f", &storage_class.to_string_lossy()])?;
    shared.apply(&claim("guide", CLASS, "320Mi", VolumeMode::Filesystem))?;
    let finalizers = shared.value("pvc", "guide", ".metadata.finalizers")?;
    ensure!(finalizers.contains("topolvm.cybozu.com/pvc"), "the finalizers of a claim are {finalizers}");
    shared.apply(&pod("guide", "guide", VolumeMode::Filesystem))?;
    let capacity = shared.value("pod", "guide", r".metadata.annotations.capacity\.topolvm\.cybozu\.com/00default")?;
    ensure!(capacity == (320 << 20).to_string(), "the pod asks for {capacity} bytes");
    shared.kubectl(&["wait", "--for=condition=Ready", "pod/guide", "--timeout=180s"])?;
    shared.kubectl(&["delete", "pod/guide", "pvc/guide", "--timeout=180s"]).map(drop)
}

fn run_scenario(shared: &TestCluster, node: &Node, flavor: ApiFlavor) -> Result<()> {
    Scenario { cluster: &shared.cluster, node, flavor }.run(&mut SilentReporter)
}

/// Returns when their pods are deleted, too.
fn delete(shared: &TestCluster, objects: &[&str]) -> Result<()> {
    let delete = ["delete", "-n", NAMESPACE, "--cascade=foreground", "--timeout=180s"];
    shared.kubectl(&[&delete[..], objects].concat()).map(drop)
}
