//! A StatefulSet whose pods wait for two reasons: kube-scheduler does not call the extender, and no node has the
//! default device class. `doctor` names both, and after the commands that it prints the pods run.

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::Trial;
use serde_json::json;
use system_tests::kustomization::{Kustomization, lvmd_config, patch};
use system_tests::manifests::{VolumeMode, pod, storage_class, vault};
use system_tests::plugin;
use system_tests::product_images;
use system_tests::shared::TestCluster;
use testbed::size::GIB;
use testbed::suite;
use testbed::topolvm::TopolvmSpec;
use topolvm_api::ApiFlavor::TopoLvm;

const NAMESPACE: &str = "vault";
const LVMD_CONFIG: &str = "\
socket-name: /run/topolvm/lvmd.sock
device-classes: [{name: ssd, volume-group: myvg1, spare-gb: 0}]
";

pub(crate) fn tests() -> Vec<Trial> {
    let name = "doctor_commands_start_pods_that_wait_for_two_reasons";
    vec![suite::test(name, run_in_own_cluster)]
}

fn run_in_own_cluster() -> Result<()> {
    let scratch = tempfile::Builder::new().prefix("topolvm-vault-").tempdir_in("/var/tmp")?;
    let manifests = with_assumed_extender().write(&scratch.path().join("extender"))?;
    let mut spec = product_images::in_pods(TopolvmSpec::nodes(1)?, &manifests)?;
    for node in &mut spec.nodes {
        node.vg_disks = vec![60 * GIB];
    }
    let shared = TestCluster::up("vault", &spec)?;
    let outcome = fix(&shared).with_context(|| {
        let seen = shared.kubectl(&["get", "nodes,pods,pvc,csistoragecapacities", "-A"]).unwrap_or_default();
        format!("{seen}\n{}", shared.kubectl(&["describe", "pods", "-n", NAMESPACE]).unwrap_or_default())
    });
    shared.down()?;
    outcome
}

/// Returns the manifests of the extender without topolvm-scheduler, with controllers that do not check for it, and with
/// only the device class `ssd`.
fn with_assumed_extender() -> Kustomization<'static> {
    let path = "/spec/template/spec/containers/0/args/-";
    let assume = json!([{"op": "add", "path": path, "value": "--assume-extender"}]);
    Kustomization {
        base: "overlays/lvmd",
        components: &["webhooks", "certificate-self-managed"],
        patches: vec![lvmd_config(LVMD_CONFIG), patch("Deployment", Some("topolvm-controller"), &assume)],
        ..Kustomization::default()
    }
}

fn fix(shared: &TestCluster) -> Result<()> {
    create_vault(shared)?;
    shared.cluster.ready("apiserver", || {
        let report = plugin::json(&shared.cluster, &["doctor"])?;
        for check in ["storage-classes", "extender-called", "blocked-pods"] {
            let mut checks = report["checks"].as_array().into_iter().flatten();
            let found = checks.find(|found| found["name"] == check).context("no such check")?.to_string();
            let is_named = ["vault-0", "vault-1", "vault-2"].iter().all(|pod| found.contains(pod));
            ensure!(is_named, "{check} does not name all pods: {found}");
        }
        Ok(())
    })?;
    plugin::run_printed_commands(&shared.cluster)?;
    let ready = || {
        let path = "jsonpath={.status.readyReplicas}";
        let ready = shared.kubectl(&["get", "statefulset", "vault", "-n", NAMESPACE, "-o", path])?;
        ensure!(ready == "3", "pods that run: {ready:?}");
        Ok(())
    };
    shared.cluster.ready("scheduler", ready).or_else(|_| shared.cluster.ready("scheduler", ready))?;
    shared.cluster.ready("apiserver", || {
        let report = plugin::json(&shared.cluster, &["doctor"])?;
        ensure!(report["result"] == "ok", "{report:#}");
        Ok(())
    })
}

/// Creates a StatefulSet of three with claims of 10 and 5 GiB each, of a StorageClass without a device class.
fn create_vault(shared: &TestCluster) -> Result<()> {
    shared.kubectl(&["delete", "storageclass", "topolvm-provisioner"])?;
    shared.apply(&storage_class(TopoLvm, "vault-storage", None, false))?;
    shared.kubectl(&["create", "namespace", NAMESPACE])?;
    let container = &pod("vault", "data", VolumeMode::Filesystem)["spec"]["containers"][0];
    shared.apply(&vault(NAMESPACE, container))
}
