//! A cluster in which two faults keep pods waiting: kube-scheduler does not call the extender for which the webhook
//! prepares pods, and a StorageClass requests a default class that no node has. `doctor` names both, as the controller
//! does automatically, and its printed commands fix them. There is no kubelet: the test ends when the pods are bound to
//! nodes with their volumes.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use system_tests::fake_node::FakeNodes;
use system_tests::manifests::{storage_class, vault};
use system_tests::plugin;
use system_tests::shared::TestCluster;
use testbed::sidecars::Sidecar;
use testbed::suite;
use testbed::topolvm::{self, CONTROLLER, TopolvmSpec};
use topolvm_api::ApiFlavor;
use topolvm_testkit::lvm::FakeLvm;

use crate::fixture::{GRACE, LV, spec, write_extender_manifests};
use crate::injected;

const NAMESPACE: &str = "vault";
const NODES: [&str; 2] = ["n1", "n2"];
const LVMD_CONFIG: &str = "device-classes: [{name: ssd, volume-group: ssd, spare-gb: 0}]";
/// The checks that find why the pods wait.
const CHECKS: [&str; 3] = ["storage-classes", "extender-called", "blocked-pods"];

pub(crate) fn tests() -> Vec<Trial> {
    let name = "doctor_commands_fix_both_faults_of_waiting_pods";
    vec![suite::test(name, run_in_own_cluster)]
}

fn run_in_own_cluster() -> Result<()> {
    let shared = TestCluster::up("postmortem", &spec(&[])?)?;
    let nodes = FakeNodes::new(&shared.cluster, &spec(&[])?)?;
    let lvms = NODES.map(|_| FakeLvm::new().with_group(injected::GROUP, 240 << 30));
    let outcome = start_with_webhook(&shared)
        .and_then(|()| add_nodes(&nodes, &lvms))
        .and_then(|()| check_both_faults(&shared))
        .and_then(|()| injected::check_faults(&shared, &lvms));
    let outcome = outcome.with_context(|| {
        let seen = shared.kubectl(&["get", "nodes,pods,pvc,csistoragecapacities,mutatingwebhookconfigurations", "-A"]);
        let log = fs::read_to_string(shared.cluster.log(CONTROLLER)).unwrap_or_default();
        let last: Vec<_> = log.lines().rev().take(20).collect();
        format!("{}\ncontroller, last line first:\n{}", seen.unwrap_or_default(), last.join("\n"))
    });
    nodes.stop()?;
    let outcome = outcome.and_then(|()| injected::check_without_lvmd(&shared));
    shared.down()?;
    outcome
}

/// Starts the controller with the webhook for pods, and csi-provisioner, with the manifests of the extender.
fn start_with_webhook(shared: &TestCluster) -> Result<()> {
    shared.cluster.stop(CONTROLLER, GRACE)?;
    let spec = TopolvmSpec {
        manifests: write_extender_manifests(&shared.cluster)?,
        sidecars: vec![Sidecar::Provisioner],
        // Without a scheduling mode, as TopoLVM is deployed, each pod gets the resource
        ..spec(&["--enable-webhooks", "--webhook-namespace=topolvm-system", "--doctor-interval=1s"])?
    };
    topolvm::start(&shared.cluster, &[], &spec)
}

/// Adds nodes with the device class `ssd` and no default class.
fn add_nodes(nodes: &FakeNodes<'_>, lvms: &[FakeLvm]) -> Result<()> {
    NODES.iter().zip(lvms).try_for_each(|(name, lvm)| nodes.add(name, lvm, LVMD_CONFIG))
}

/// Creates a StatefulSet of three, with claims of 10 and 5 GiB each, of a StorageClass without a device class.
fn create_vault(shared: &TestCluster) -> Result<()> {
    // Another one without a device class
    shared.kubectl(&["delete", "storageclass", "topolvm-provisioner"])?;
    shared.apply(&storage_class(ApiFlavor::TopoLvm, "vault-storage", None, false))?;
    shared.kubectl(&["create", "namespace", NAMESPACE])?;
    shared.apply(&vault(NAMESPACE, &json!({"name": "vault", "image": "vault"})))
}

fn check_both_faults(shared: &TestCluster) -> Result<()> {
    create_vault(shared)?;
    // All pods have been checked when all are named
    shared.cluster.ready("apiserver", || {
        for check in CHECKS {
            let found = finding(shared, check)?;
            for pod in ["vault-0", "vault-1", "vault-2"] {
                let named = format!("vault/{pod} (statefulset/vault)");
                ensure!(found.contains(&named), "{check} does not name {named}: {found}");
            }
        }
        Ok(())
    })?;
    let found = finding(shared, "storage-classes")?;
    ensure!(found.contains("request 00default, and nodes have only ssd"), "{found}");
    let annotations = shared.kubectl(&["-n", NAMESPACE, "get", "pod", "vault-0", "-o", "json"])?;
    let pod: Value = serde_json::from_str(&annotations)?;
    ensure!(pod["metadata"]["annotations"]["capacity.topolvm.io/00default"] == "16106127360", "{pod:#}");
    wait_for_condition(shared, "False", &CHECKS.join(", "))?;
    for check in CHECKS {
        wait_for_metric(shared, check, 1)?;
    }
    let events = shared.kubectl(&["-n", "topolvm-system", "describe", "configmap", "topolvm-doctor"])?;
    ensure!(events.contains("CheckFailed") && events.contains("blocked-pods: pods wait only for"), "{events}");

    let commands = plugin::run_printed_commands(&shared.cluster)?;
    ensure!(commands.len() == 4, "StorageClass, webhook, CSIDriver and pods: {commands:#?}");
    wait_for_volumes(shared)?;
    shared.cluster.ready("apiserver", || {
        let report = plugin::json(&shared.cluster, &["doctor"])?;
        // The agents, which would have metrics of the storage, are not pods, but they report it in their objects
        ensure!(report["result"] == "ok", "doctor says: {report:#}");
        ensure!(
            report.to_string().contains("2 nodes report healthy"),
            "the nodes do not report their storage: {report:#}"
        );
        Ok(())
    })?;
    wait_for_condition(shared, "True", "failed: none; warnings: none; unknown: none")?;
    CHECKS.into_iter().try_for_each(|check| wait_for_metric(shared, check, 0))
}

/// Waits until all pods are bound to nodes, and all claims to volumes that lvmd has created.
fn wait_for_volumes(shared: &TestCluster) -> Result<()> {
    let list = |arguments: &[&str], path: &str| shared.kubectl(&[arguments, &["-o", path]].concat());
    shared.cluster.ready("scheduler", || {
        let bound = list(&["-n", NAMESPACE, "get", "pods"], "jsonpath={.items[*].spec.nodeName}")?;
        ensure!(bound.split_whitespace().count() == 3, "pods are on the nodes {bound:?}");
        let phases = list(&["-n", NAMESPACE, "get", "pvc"], "jsonpath={.items[*].status.phase}")?;
        ensure!(phases.split_whitespace().filter(|phase| *phase == "Bound").count() == 6, "claims are {phases:?}");
        let volumes = list(&["get", LV], "jsonpath={.items[*].status.volumeID}")?;
        ensure!(volumes.split_whitespace().count() == 6, "volumes: {volumes:?}");
        Ok(())
    })
}

/// Waits until the condition of the controller has this status, and this text in its message.
fn wait_for_condition(shared: &TestCluster, status: &str, words: &str) -> Result<()> {
    shared.cluster.ready(CONTROLLER, || {
        let map = shared.kubectl(&["-n", "topolvm-system", "get", "configmap", "topolvm-doctor", "-o", "json"])?;
        let map: Value = serde_json::from_str(&map)?;
        let message = map["data"]["message"].as_str().unwrap_or_default();
        ensure!(map["data"]["status"] == status && message.contains(words), "the condition is {map:#}");
        Ok(())
    })
}

/// Waits until the metric of the controller counts so many failures of a check.
fn wait_for_metric(shared: &TestCluster, check: &str, count: usize) -> Result<()> {
    let expected = format!("topolvm_doctor_findings{{check=\"{check}\",severity=\"fail\"}} {count}");
    shared.cluster.ready(CONTROLLER, || {
        let mut command = shared.cluster.command("curl");
        let output = command.args(["-sf", "--max-time", "5", "http://127.0.0.1:8080/metrics"]).output()?;
        let page = String::from_utf8_lossy(&output.stdout);
        ensure!(page.lines().any(|line| line == expected), "no {expected} in {page}");
        Ok(())
    })
}

/// Returns the finding of a failed check.
fn finding(shared: &TestCluster, name: &str) -> Result<String> {
    let report = plugin::json(&shared.cluster, &["doctor"])?;
    let mut checks = report["checks"].as_array().into_iter().flatten();
    let check = checks.find(|check| check["name"] == name).context("no such check")?;
    ensure!(check["result"] == "fail", "{name} finds nothing: {check:#}");
    Ok(check["findings"][0]["found"].as_str().unwrap_or_default().to_owned())
}
